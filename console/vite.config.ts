// Builds the console into the Python package. `sources.sha256` says which sources a build was made of;
// tests/console/test_build.py works the same sum out and compares.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const here = import.meta.dirname;

function listSources(): string[] {
  const inside = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(here.length + 1).replaceAll("\\", "/"));
  return [...inside, "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"].sort();
}

function sumOfSources(): string {
  const sum = createHash("sha256");
  for (const name of listSources()) {
    sum.update(name + "\0");
    sum.update(readFileSync(join(here, name)));
    sum.update("\0");
  }
  return sum.digest("hex");
}

const recordSources: Plugin = {
  name: "record-sources",
  generateBundle() {
    this.emitFile({ type: "asset", fileName: "sources.sha256", source: sumOfSources() + "\n" });
  },
};

export default defineConfig({
  base: "./",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    outDir: process.env["KSANA_CONSOLE_OUT"] ?? "../src/ksana/api/console/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      output: { entryFileNames: "app-[hash].js", assetFileNames: "[name]-[hash][extname]", chunkFileNames: "part-[hash].js" },
    },
  },
  plugins: [recordSources],
});
