// The same names for `import`. There is one copy of the code, that of `require`.

export * from "./index.js";
