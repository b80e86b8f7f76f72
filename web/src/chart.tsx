// SPDX-License-Identifier: Apache-2.0
// Curves over time, drawn as SVG. The first curve is an area. What they show is in words too, for those who do not see them.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { clock, duration, hour, time } from "./format";

export interface Curve { name: string; tone: "one" | "two" | "three"; points: [number, number][] }   // microseconds and value, in order
const HEIGHT = 150, TOP = 10, LEFT = 54, BOTTOM = 20, RIGHT = 8;

function steps(most: number): number[] {
  const raw = most / 4;
  const size = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw) ?? raw;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

export function useWidth<T extends HTMLElement>() {
  const ref = useRef<T>(null);
  const [width, set] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => set(Math.floor(entry!.contentRect.width)));
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  return { ref, width };
}

export function Chart({ curves, most, format, label }: { curves: Curve[]; most: number; format: (value: number) => string; label: string }) {
  const { ref, width } = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const clip = useId();
  const all = curves[0]?.points ?? [];
  const from = all[0]?.[0] ?? 0, to = all[all.length - 1]?.[0] ?? 1;
  const x = (t: number) => LEFT + ((t - from) / Math.max(1, to - from)) * (width - LEFT - RIGHT);
  const top = most > 0 ? most * 1.04 : 1;
  const y = (v: number) => TOP + (1 - Math.min(v, top) / top) * (HEIGHT - TOP - BOTTOM);
  const line = (points: [number, number][]) => points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const index = at === null || all.length === 0 ? -1 :
    all.reduce((best, [t], i) => (Math.abs(x(t) - at) < Math.abs(x(all[best]![0]) - at) ? i : best), 0);
  const words = curves.map((c) => `${c.name} ${c.points.length ? format(c.points[c.points.length - 1]![1]) : "unknown"}`).join(", ");
  const ticks = width > 480 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1];
  return <div class="chart" ref={ref}>
    <p class="legend">{curves.map((c) => <span key={c.name}><i class={`dot ${c.tone}`} />{c.name} <b>{index >= 0 && c.points[index] ? format(c.points[index]![1]) : c.points.length ? format(c.points[c.points.length - 1]![1]) : ""}</b></span>)}
      <span class="soft">{index >= 0 ? time(all[index]![0]) : all.length > 1 ? `last ${duration(to - from)}` : ""}</span></p>
    {width > 0 && <svg width={width} height={HEIGHT} role="img" aria-label={`${label}: now ${words}`}
      onPointerMove={(e) => setAt(e.offsetX)} onPointerLeave={() => setAt(null)}>
      <clipPath id={clip}><rect x={LEFT} y={0} width={Math.max(0, width - LEFT - RIGHT)} height={HEIGHT - BOTTOM + 1} /></clipPath>
      {steps(most || 1).map((v) => <g key={v}><path class="grid" d={`M${LEFT} ${y(v)}H${width - RIGHT}`} /><text x={LEFT - 6} y={y(v) + 4} text-anchor="end">{format(v)}</text></g>)}
      {all.length > 1 && ticks.map((part) => <text key={part} x={LEFT + part * (width - LEFT - RIGHT)} y={HEIGHT - 4}
        text-anchor={part === 0 ? "start" : part === 1 ? "end" : "middle"}>{(to - from < 600e6 ? clock : hour)(from + part * (to - from))}</text>)}
      <g clip-path={`url(#${clip})`}>
        {curves.map((c, i) => c.points.length > 1 && <g key={c.name}>
          {i === 0 && <path class={`area ${c.tone}`} d={`${line(c.points)}L${x(c.points[c.points.length - 1]![0])} ${y(0)}L${x(c.points[0]![0])} ${y(0)}Z`} />}
          <path class={`line ${c.tone}`} d={line(c.points)} />
        </g>)}
        {index >= 0 && <path class="cursor" d={`M${x(all[index]![0])} ${TOP}V${HEIGHT - BOTTOM}`} />}
      </g>
    </svg>}
    {all.length < 2 && <p class="empty">The curve begins as soon as there are two measurements.</p>}
  </div>;
}
