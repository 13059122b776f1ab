"""Work of the page's scripts, counted instead of timed: a busy machine does not change it."""

from __future__ import annotations

# A function that calls another one and returns the units of work of that. A unit is a call of a listed function, a
# character that it reads or copies, a key that it copies, or an element of `root` at the end. The parser does nearly
# all of its work in these. Steps back within one match of a regular expression are not counted.
COUNTED = """(action, root) => {
    let work = 0;
    const originals = [];
    const count = (owner, name, size) => {
        const original = owner[name];
        originals.push(() => (owner[name] = original));
        owner[name] = function (...given) {
            const from = this?.lastIndex;
            const result = original.apply(this, given);
            work += 1 + size.call(this, result, given, from);
            return result;
        };
    };
    // All methods with regular expressions call this one.
    count(RegExp.prototype, "exec", function (found, [text], lastIndex) {
        const from = this.global || this.sticky ? lastIndex : 0;
        if (found) return found.index + found[0].length - from;
        const isAnchored = this.sticky || (this.source.startsWith("^") && !this.multiline);
        return isAnchored ? 0 : Math.max(0, String(text).length - from);
    });
    count(String.prototype, "slice", (piece) => piece.length);
    count(String.prototype, "substring", (piece) => piece.length);
    count(String.prototype, "indexOf", function (at, [, from = 0]) {
        return Math.max(0, (at < 0 ? this.length : at) - from);
    });
    count(Object, "assign", (_, [, ...sources]) => sources.flatMap(Object.keys).length);
    count(Set.prototype, "has", () => 0);
    try {
        action();
    } finally {
        originals.forEach((restore) => restore());
    }
    return work + root.querySelectorAll("*").length;
}"""
