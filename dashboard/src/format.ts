/** Numbers, money and times as people read them. Pure: each takes what it needs. */

/** $12.30; three significant digits below a dollar, since a minute of a GPU costs cents. */
export function money(micros: number | null | undefined): string {
  if (micros === null || micros === undefined) return "–";
  const dollars = micros / 1e6;
  const size = Math.abs(dollars);
  const digits = size === 0 || size >= 1 ? 2 : size >= 0.01 ? 3 : 4;
  return `${dollars < 0 ? "−" : ""}$${size.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function hourly(micros: number): string {
  return `${money(micros)}/h`;
}

/** 42 s, 5 min, 2 h 31 min, 3 d 4 h. */
export function duration(ms: number): string {
  const s = Math.round(Math.abs(ms) / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.round(s / 60)} min`;
  if (s < 86_400) return joined(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return joined(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

/** "3 min ago", "in 2 h". */
export function relative(at: string | number | Date, now: number): string {
  const ms = +new Date(at) - now;
  if (Math.abs(ms) < 1500) return "now";
  return ms < 0 ? `${duration(ms)} ago` : `in ${duration(ms)}`;
}

/** The instant itself, in the reader's zone: for a tooltip beside a relative time. */
export function absolute(at: string | number | Date): string {
  return new Date(at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

export function bytes(size: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[at]}`;
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

/** "1 job", "2 jobs". */
export function plural(n: number, one: string, more = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : more}`;
}

export function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

function joined(large: number, unit: string, small: number, smaller: string): string {
  return small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;
}
