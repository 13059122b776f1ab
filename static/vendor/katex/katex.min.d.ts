// The script sets the global `katex`; static/js/formula.js gives it the types of the package.
export {};
