// Rules for the TypeScript sources: those of typescript-eslint that know types.

import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/", "test/", "examples/", "bin/", "*.mjs"] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "@typescript-eslint/no-extraneous-class": "off",
    },
  },
);
