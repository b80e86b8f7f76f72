// SPDX-License-Identifier: Apache-2.0
// Every GPU as a cell on one canvas, which stays fast with ten thousand of them. A cell's frame says to whom it is given, its level how
// busy it was measured. The nodes page says the same as a table.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "./chart";
import { count, plain } from "./format";
import { go, link } from "./route";
import type { CellNode } from "./types";

export const KINDS: [string, string, string][] = [   // letter, name, colour variable
  ["u", "used", "--used"], ["s", "shared", "--shared"], ["m", "slices", "--slices"], ["h", "starting", "--held"], ["f", "free", "--free"],
  ["d", "draining", "--drain"], ["b", "bad", "--broken"], ["l", "lost", "--lost"],
];
const NAMES = Object.fromEntries(KINDS.map(([letter, name]) => [letter, name]));
const UNKNOWN = 255;

export function kinds(nodes: CellNode[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const node of nodes) for (const letter of node.cells) counts[letter] = (counts[letter] ?? 0) + 1;
  return counts;
}

interface Box { node: CellNode; x: number; y: number }
interface Layout { boxes: Box[]; size: number; gap: number; title: number; height: number; width: number; labels: { text: string; y: number }[] }
const MOST_COLUMNS = 8;

function layOut(nodes: CellNode[], width: number): Layout {
  const total = nodes.reduce((n, node) => n + node.cells.length, 0);
  const size = total <= 16 && width > 500 ? 40 : total <= 64 && width > 500 ? 28 : total <= 256 ? (width > 500 ? 20 : 15) : total <= 1024 ? 13 : total <= 4096 ? 9 : 6;
  const gap = size >= 15 ? 3 : size >= 9 ? 2 : 1;
  const title = size >= 15 ? 16 : 0;
  const step = size + gap;
  const pools = new Map<string, CellNode[]>();
  for (const node of nodes) {
    if (!node.cells) continue;
    const list = pools.get(node.pool);
    if (list) list.push(node);
    else pools.set(node.pool, [node]);
  }
  const boxes: Box[] = [], labels: Layout["labels"] = [];
  let y = 0;
  for (const [pool, list] of pools) {
    if (pools.size > 1) { labels.push({ text: pool, y: y + 11 }); y += 18; }
    let x = 0, row = 0;
    for (const node of list) {
      const columns = Math.min(MOST_COLUMNS, node.cells.length), rows = Math.ceil(node.cells.length / MOST_COLUMNS);
      const w = Math.max(columns * step, title ? 76 : 0) + gap * 2, h = rows * step + title + gap * 2;
      if (x > 0 && x + w > width) { x = 0; y += row; row = 0; }
      boxes.push({ node, x, y });
      x += w + gap * 2;
      row = Math.max(row, h + gap);
    }
    y += row + 6;
  }
  return { boxes, size, gap, title, height: Math.max(40, y), width, labels };
}

function draw(canvas: HTMLCanvasElement, layout: Layout) {
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(layout.width * scale);
  canvas.height = Math.round(layout.height * scale);
  const c = canvas.getContext("2d");
  if (!c) return;
  c.setTransform(scale, 0, 0, scale, 0, 0);
  const style = getComputedStyle(canvas);
  const colour = Object.fromEntries(KINDS.map(([letter, , name]) => [letter, style.getPropertyValue(name).trim()]));
  const text = style.getPropertyValue("--soft").trim(), { size, gap, title } = layout;
  c.font = `11px ${style.fontFamily}`;
  c.fillStyle = text;
  for (const label of layout.labels) c.fillText(label.text, 0, label.y);
  for (const { node, x, y } of layout.boxes) {
    if (title) {
      c.fillStyle = text;
      const room = Math.max(Math.min(MOST_COLUMNS, node.cells.length) * (size + gap), 76) - gap;
      let name = plain(node.name);
      while (name.length > 3 && c.measureText(name).width > room) name = name.slice(0, -2) + "…";
      c.fillText(name, x, y + 11);
    }
    for (let i = 0; i < node.cells.length; ++i) {
      const letter = node.cells[i]!, px = x + (i % MOST_COLUMNS) * (size + gap), py = y + title + Math.floor(i / MOST_COLUMNS) * (size + gap);
      const tone = colour[letter] ?? text;
      c.fillStyle = c.strokeStyle = tone;
      if (letter === "f" || letter === "d" || letter === "l") {
        c.globalAlpha = letter === "f" ? 0.16 : 0.3;
        c.fillRect(px, py, size, size);
        c.globalAlpha = 1;
        if (size >= 9) { c.lineWidth = 1; c.strokeRect(px + 0.5, py + 0.5, size - 1, size - 1); }
        if (letter !== "f" && size >= 6) stripe(c, px, py, size, letter === "l");
      } else if (letter === "b") {
        c.fillRect(px, py, size, size);
        if (size >= 9) { c.strokeStyle = style.getPropertyValue("--card").trim(); c.lineWidth = Math.max(1.5, size / 10); cross(c, px, py, size); }
      } else {
        const busy = node.utilization_percent[i] ?? UNKNOWN;
        c.globalAlpha = busy === UNKNOWN ? 0.62 : 0.3;
        c.fillRect(px, py, size, size);
        c.globalAlpha = 1;
        if (busy !== UNKNOWN) { const level = Math.round((size * busy) / 100); c.fillRect(px, py + size - level, size, level); }
        if (size >= 9) { c.lineWidth = 1; c.strokeRect(px + 0.5, py + 0.5, size - 1, size - 1); }
      }
    }
  }
}
function cross(c: CanvasRenderingContext2D, x: number, y: number, size: number) {
  const a = size * 0.28;
  c.beginPath();
  c.moveTo(x + a, y + a); c.lineTo(x + size - a, y + size - a);
  c.moveTo(x + size - a, y + a); c.lineTo(x + a, y + size - a);
  c.stroke();
}
function stripe(c: CanvasRenderingContext2D, x: number, y: number, size: number, both: boolean) {
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(x, y + size); c.lineTo(x + size, y);
  if (both) { c.moveTo(x, y); c.lineTo(x + size, y + size); }
  c.stroke();
}

export function Cells({ nodes, theme }: { nodes: CellNode[]; theme: string }) {
  const { ref, width } = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hint, setHint] = useState<{ x: number; y: number; text: string; sub: string } | null>(null);
  const layout = useMemo(() => (width > 0 ? layOut(nodes, width) : null), [nodes, width]);
  useEffect(() => {
    if (!layout || !canvas.current) return;
    const paint = () => canvas.current && draw(canvas.current, layout);
    paint();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", paint);
    return () => dark.removeEventListener("change", paint);
  }, [layout, theme]);
  const find = (e: PointerEvent | MouseEvent) => {
    if (!layout) return null;
    const step = layout.size + layout.gap;
    for (const box of layout.boxes) {
      const column = Math.floor((e.offsetX - box.x) / step), row = Math.floor((e.offsetY - box.y - layout.title) / step);
      const i = row * MOST_COLUMNS + column;
      if (column >= 0 && column < MOST_COLUMNS && row >= 0 && i < box.node.cells.length) return { node: box.node, i };
      if (layout.title && e.offsetX >= box.x && e.offsetX < box.x + 76 && e.offsetY >= box.y && e.offsetY < box.y + layout.title) return { node: box.node, i: -1 };
    }
    return null;
  };
  const point = (e: PointerEvent) => {
    const hit = find(e);
    if (!hit) return setHint(null);
    const { node, i } = hit, busy = node.utilization_percent[i];
    const text = i < 0 ? plain(node.name) : `${plain(node.name)} GPU ${i}: ${NAMES[node.cells[i]!]}`;
    const user = i >= 0 && node.users[i] ? `job ${node.users[i]}` : "", load = i >= 0 && busy !== undefined && busy !== UNKNOWN ? `${busy} % busy` : "";
    setHint({ x: Math.min(e.offsetX, width - 150), y: e.offsetY, text, sub: [user, load, node.gpu_type, node.state === "ready" ? "" : node.state].filter(Boolean).join(" · ") });
  };
  const counts = kinds(nodes);
  const summary = KINDS.filter(([letter]) => counts[letter]).map(([letter, name]) => `${counts[letter]} ${name}`).join(", ");
  return <div class="cells" ref={ref}>
    <ul class="legend">{KINDS.filter(([letter]) => counts[letter]).map(([letter, name]) =>
      <li key={letter}><i class={`swatch ${letter}`} />{name} <b>{count(counts[letter]!)}</b></li>)}</ul>
    {layout && <canvas ref={canvas} role="img" aria-label={`GPUs: ${summary}. The nodes page has them as a table.`}
      style={{ width: `${layout.width}px`, height: `${layout.height}px` }} onPointerMove={point} onPointerLeave={() => setHint(null)}
      onClick={(e) => { const hit = find(e); if (hit) go(link("nodes", hit.node.name)); }} />}
    {hint && <div class="hint" style={{ left: `${hint.x}px`, top: `${hint.y + 34}px` }}>{hint.text}<small>{hint.sub}</small></div>}
  </div>;
}
