// `node build.mjs [folder]`: the page's files, for the server to hand out. The same sources give the same bytes.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "src");
const out = process.argv[2] ?? join(here, "..", "src", "deeptaylor", "app", "server", "static");
const words = "// Built from web/src by `npm run build`; edit there.";

mkdirSync(out, { recursive: true });
await build({
  entryPoints: [join(source, "main.ts")],
  outfile: join(out, "page.js"),
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: words },
  absWorkingDir: here,
});
for (const file of ["index.html", "page.css", "icon.svg"]) copyFileSync(join(source, file), join(out, file));

// What it was built from, so that a test can tell without node whether it is up to date.
const hash = createHash("sha256");
const names = readdirSync(source, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath, entry.name).slice(source.length + 1).replaceAll("\\", "/"))
  .sort();
for (const name of names) hash.update(`${name}\0`).update(readFileSync(join(source, name))).update("\0");
writeFileSync(join(out, "sources.sha256"), `${hash.digest("hex")}\n`);
