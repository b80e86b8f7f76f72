// SPDX-License-Identifier: Apache-2.0
// Numbers and times for people. Unknown: "–".
export const nothing = "–";

export function duration(us: number): string {
  const s = Math.max(0, Math.round(us / 1e6));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? (s % 60) + " s" : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// How far the clock of this machine is ahead of the controller's, in milliseconds. Answers carry their date to the second.
let ahead = 0;
export function clockSaid(date: string | null) {
  const difference = Date.now() - Date.parse(date ?? "");
  if (!Number.isNaN(difference)) ahead = Math.abs(difference) > 3000 ? difference : 0;
}
export const clockAhead = () => ahead * 1000;
// On the controller's clock, as all times that it tells.
export const now = () => (Date.now() - ahead) * 1000;
export const ago = (us: number) => (us ? `${duration(now() - us)} ago` : nothing);

const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });
const seconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const short = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
export function time(us: number): string {
  if (!us) return nothing;
  const date = new Date(us / 1000);
  return date.toDateString() === new Date().toDateString() ? seconds.format(date) : day.format(date);
}
export const clock = (us: number) => seconds.format(new Date(us / 1000));
export const hour = (us: number) => short.format(new Date(us / 1000));

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
export const count = (n: number) => number.format(n);
// Of hours, also of the first minutes of a month.
const fine = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
export const few = (n: number) => (n < 10 ? fine : number).format(n);
export const gpus = (milli: number) => number.format(Math.round(milli / 100) / 10);
export const percent = (part: number, whole: number) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : nothing);

export function bytes(n: number): string {
  if (!n) return nothing;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; ++i) n /= 1024;
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

// "anna" of "anna@laptop".
export const person = (user: string) => (user ? user.split("@")[0] : nothing);

// What may mislead on a page: control characters and marks that change the direction of text.
export const plain = (text: string) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// Without the escape sequences of terminals.
export const untinted = (text: string) => text.replace(/\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-_])/g, "");

export function asked(r: { gpus: number; gpu_milli: number; mig_profile: string; gpu_type: string }, pods = 1): string {
  const type = r.gpu_type ? ` ${r.gpu_type}` : "";
  const times = pods > 1 ? `${pods} × ` : "";
  if (r.gpus) return `${times}${r.gpus}${type}`;
  if (r.gpu_milli) return `${times}${r.gpu_milli / 1000}${type}`;
  if (r.mig_profile) return `${times}${r.mig_profile}`;
  return nothing;
}

export const words = (state: string) => state.toLowerCase().replace(/_/g, " ");
export const finished = (state: string) => ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"].includes(state);
