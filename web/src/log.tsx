// SPDX-License-Identifier: Apache-2.0
// What a job prints, as it prints it. Only the end of a long log is kept in the page.
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem, events } from "./api";
import { plain, untinted } from "./format";
import { Card } from "./ui";

const MOST = 400_000;   // characters
interface Piece { text: string; stderr: boolean }

export function Log({ job }: { job: number }) {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [state, setState] = useState("connecting");
  const [skipped, setSkipped] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  const follow = useRef(true);
  useEffect(() => {
    const stop = new AbortController();
    let list: Piece[] = [], over = false, planned = 0;
    const show = () => { planned ||= requestAnimationFrame(() => { planned = 0; setPieces([...list]); }); };
    const run = async () => {
      for (let wait = 1000; !stop.signal.aborted && !over; ) {
        list = [];
        setSkipped(false);
        try {
          await events(`/jobs/${job}/log`, stop.signal, (event, data) => {
            setState("follows");
            wait = 1000;
            if (event === "output") {
              const piece = JSON.parse(data) as Piece;
              piece.text = plain(untinted(piece.text).replace(/\r\n/g, "\n").replace(/[^\n]*\r/g, ""));
              const last = list[list.length - 1];
              if (last && last.stderr === piece.stderr && last.text.length < 20_000) list[list.length - 1] = { ...last, text: last.text + piece.text };
              else list.push(piece);
              for (let size = list.reduce((n, p) => n + p.text.length, 0); size > MOST && list.length > 1; ) { size -= list.shift()!.text.length; setSkipped(true); }
              show();
            } else if (event === "skipped") setSkipped(true);
            else if (event === "end") { over = true; setState("complete"); }
            else if (event === "problem") { over = true; setState((JSON.parse(data) as { detail: string }).detail); }
          });
        } catch (e) {
          if (stop.signal.aborted) return;
          if (e instanceof Problem && e.status >= 400 && e.status < 600 && e.status !== 503 && e.status !== 429) { setState(e.message); return; }
        }
        if (over || stop.signal.aborted) return;
        setState("connecting");
        await new Promise((done) => setTimeout(done, wait));
        wait = Math.min(wait * 2, 30_000);
      }
    };
    void run();
    return () => { stop.abort(); cancelAnimationFrame(planned); };
  }, [job]);
  useEffect(() => { if (follow.current && box.current) box.current.scrollTop = box.current.scrollHeight; }, [pieces]);
  const scrolled = () => { const b = box.current!; follow.current = b.scrollHeight - b.scrollTop - b.clientHeight < 30; };
  return <Card title="Log" wide aside={<span role="status">{plain(state)}</span>}>
    {skipped && <p class="soft">Only the end is shown; `vctl logs {job}` has all of it.</p>}
    <pre class="log" ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-live="off" aria-label="What the job printed">{pieces.length === 0 && state !== "connecting" ? <span class="soft">Nothing printed yet.</span> :
      pieces.map((p, i) => <span key={i} class={p.stderr ? "stderr" : ""}>{p.text}</span>)}</pre>
  </Card>;
}
