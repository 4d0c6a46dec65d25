// `npm run digits`: the digits page as plain files in web/dist/digits, to be put on any web server.
// The exported explainers are made by `python -m deeptaylor.app.server.digits web/dist/digits`.

import { build } from "esbuild";
import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist", "digits");

mkdirSync(out, { recursive: true });
await build({
  entryPoints: [join(here, "digits", "digits.ts")],
  outfile: join(out, "digits.js"),
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  minify: true,
  absWorkingDir: here,
});
for (const [folder, file] of [
  ["digits", "index.html"],
  ["src", "page.css"],
  ["src", "icon.svg"],
  ["node_modules/onnxruntime-web/dist", "ort-wasm-simd-threaded.mjs"],
  ["node_modules/onnxruntime-web/dist", "ort-wasm-simd-threaded.wasm"],
]) {
  copyFileSync(join(here, folder, file), join(out, file));
}
