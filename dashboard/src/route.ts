/** Where one is: the address after #, as `#/jobs?status=running` or `#/jobs/job_01AB`. One address for each view. */

import { computed, signal } from "@preact/signals";

export interface Route {
  name: string; // "jobs"
  id: string | null; // "job_01AB"
  tab: string | null; // "log", of #/jobs/job_01AB/log
  query: URLSearchParams;
}

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

export const route = computed(() => parse(hash.value));

export function parse(text: string): Route {
  const [path = "", query = ""] = text.replace(/^#\/?/, "").split("?", 2);
  const [name = "", id = null, tab = null] = path.split("/").filter(Boolean).map(decoded);
  return { name: name || "jobs", id, tab, query: new URLSearchParams(query) };
}

/** The address of a view, for links. Values that are empty are left out. */
export function href(name: string, id?: string | null, tab?: string | null, query: Record<string, string | null> = {}): string {
  const path = [name, id, tab].filter((part): part is string => Boolean(part)).map(encodeURIComponent).join("/");
  const given = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const search = new URLSearchParams(given).toString();
  return `#/${path}${search ? `?${search}` : ""}`;
}

/** Change the filters of the present view. `replace`: typing in a search field is not a step to go back over. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}): void {
  const { name, id, tab, query } = route.value;
  const all = { ...Object.fromEntries(query), ...changes };
  const target = href(name, id, tab, all);
  if (replace) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  hash.value = location.hash;
}

export function go(target: string): void {
  location.hash = target;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
