/** Which jobs one looks at: what the address says, what the service is asked, and whether a job that changed fits. Pure. */

import type { JobLine } from "../../api/jobs";

export interface Filters {
  status: string[];
  q: string;
  labels: string[]; // "team:nlp"
  app_id: string | null;
  sweep_id: string | null;
  key_id: string | null;
  folded: boolean; // jobs of a sweep under one heading
}

export function filtersOf(query: URLSearchParams): Filters {
  return {
    status: words(query.get("status")),
    q: query.get("q") ?? "",
    labels: words(query.get("label")),
    app_id: query.get("app_id"),
    sweep_id: query.get("sweep_id"),
    key_id: query.get("key_id"),
    folded: query.get("fold") !== "0",
  };
}

/** As the address has them: none is null, which leaves it out. */
export function inAddress(changes: Partial<Filters>): Record<string, string | null> {
  const found: Record<string, string | null> = {};
  if (changes.status) found.status = changes.status.join(",") || null;
  if (changes.labels) found.label = changes.labels.join(",") || null;
  if (changes.folded !== undefined) found.fold = changes.folded ? null : "0";
  for (const name of ["q", "app_id", "sweep_id", "key_id"] as const) if (name in changes) found[name] = changes[name] || null;
  return found;
}

/** As the service is asked. */
export function asked(filters: Filters): Record<string, string | readonly string[] | null> {
  const { status, q, labels, app_id, sweep_id, key_id } = filters;
  return { status: status.join(","), q: q.trim(), label: labels, app_id, sweep_id, key_id };
}

/** Whether anything narrows what is seen, beside the status. */
export function isNarrowed(filters: Filters): boolean {
  return Boolean(filters.q.trim() || filters.labels.length || filters.app_id || filters.sweep_id || filters.key_id);
}

/** The same filters have the same key; folding is no filter. */
export function keyOf(filters: Filters): string {
  return JSON.stringify(asked(filters));
}

/** As the service decides it. Who submitted a job is not in its line: null says that only the service knows. */
export function fits(job: JobLine, filters: Filters): boolean | null {
  if (filters.status.length && !filters.status.includes(job.status)) return false;
  if (filters.app_id && job.app_id !== filters.app_id) return false;
  if (filters.sweep_id && job.sweep_id !== filters.sweep_id) return false;
  if (!filters.labels.every((label) => hasLabel(job, label))) return false;
  if (!holds(job, filters.q.trim().toLowerCase())) return false;
  return filters.key_id ? null : true;
}

function hasLabel(job: JobLine, label: string): boolean {
  const at = label.indexOf(":");
  return at < 0 ? label in job.labels : job.labels[label.slice(0, at)] === label.slice(at + 1);
}

function holds(job: JobLine, q: string): boolean {
  if (!q || job.id.toLowerCase().startsWith(q)) return true;
  return [job.name, job.app_name, ...Object.values(job.labels)].some((text) => text.toLowerCase().includes(q));
}

function words(text: string | null): string[] {
  return (text ?? "").split(",").map((word) => word.trim()).filter(Boolean);
}
