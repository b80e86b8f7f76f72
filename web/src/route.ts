// SPDX-License-Identifier: Apache-2.0
// Where we are: #/jobs/12?state=RUNNING. All of it is in the address, so every view can be linked to.
import { useEffect, useState } from "preact/hooks";

export interface Route { page: string; rest: string; query: URLSearchParams }

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const slash = path.indexOf("/");
  return { page: slash < 0 ? path : path.slice(0, slash), rest: slash < 0 ? "" : decode(path.slice(slash + 1)), query: new URLSearchParams(query) };
}
function decode(text: string): string {
  try { return decodeURIComponent(text); } catch { return text; }
}
export function link(page: string, rest: string | number = "", query: Record<string, string> = {}): string {
  const parameters = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${page}${rest === "" ? "" : "/" + encodeURIComponent(rest)}${parameters.size ? "?" + parameters : ""}`;
}
export function go(to: string, replace = false) {
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = to;
}
export function useRoute(): Route {
  const [hash, set] = useState(location.hash);
  useEffect(() => {
    const changed = () => set(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}
