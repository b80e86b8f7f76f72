// SPDX-License-Identifier: Apache-2.0
// Makes web/dist, which the controller carries (docs/decisions/0053-dashboard.md). The same sources and the same locked tools give the
// same bytes. `node build.mjs --check` fails if dist is not what the sources say.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { mkdtempSync, rmSync } from "node:fs";

const here = dirname(fileURLToPath(import.meta.url));
const check = process.argv.includes("--check");
const out = check ? mkdtempSync(join(tmpdir(), "vrun-web-")) : join(here, "dist");
mkdirSync(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
});
await build({ absWorkingDir: here, entryPoints: { app: "src/app.css" }, outdir: out, minify: true, logLevel: "warning" });
for (const file of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", file), join(out, file));
if (check) {
  const files = readdirSync(out).sort();
  const same = files.join() === readdirSync(join(here, "dist")).sort().join() &&
    files.every((file) => readFileSync(join(out, file)).equals(readFileSync(join(here, "dist", file))));
  rmSync(out, { recursive: true });
  if (!same) {
    console.error("web/dist is not what web/src says: run `npm --prefix web run build` and commit web/dist");
    process.exit(1);
  }
}
