// Dropped and pasted files. The page cannot use them yet: a file is neither uploaded, nor does the browser open it instead of
// the page.
import { toast } from "./notices.js";

const REFUSAL = "Files are not supported yet. Nothing was uploaded.";

export function refuseFiles() {
  addEventListener("dragover", (event) => {
    if (isFile(event.dataTransfer) || !isField(event.target)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    // A link that is dropped beside a field would also replace the page.
    if (isFile(event.dataTransfer) || !isField(event.target)) event.preventDefault();
    if (isFile(event.dataTransfer)) toast(REFUSAL);
  });
  addEventListener("paste", (event) => {
    // Word processors add an image of a copied text, which is pasted as text.
    if (!isFile(event.clipboardData) || event.clipboardData?.types.includes("text/plain")) return;
    event.preventDefault();
    toast(REFUSAL);
  });
}

/** @param {DataTransfer | null} data */
const isFile = (data) => data?.types.includes("Files") ?? false;

/** @param {EventTarget | null} target */
const isField = (target) => target instanceof HTMLTextAreaElement || target instanceof HTMLInputElement;
