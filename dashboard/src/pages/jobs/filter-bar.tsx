import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { STATUSES, type Counts, type JobLine } from "../../api/jobs";
import { count } from "../../format";
import { KINDS } from "../../parts/status";
import { setQuery } from "../../route";
import { inAddress, type Filters } from "./filters";

const PAUSE_MS = 250; // between the last key and the question
const LOOKED_AT = 400; // jobs whose labels are offered

interface Props {
  filters: Filters;
  counts: Counts;
  seen: readonly JobLine[]; // labels to choose from
}

export function FilterBar({ filters, counts, seen }: Props) {
  return (
    <div class="filters" role="search" aria-label="Jobs">
      <div class="filters-row">
        <Search filters={filters} />
        <LabelField filters={filters} seen={seen} />
        <label class="check"><input type="checkbox" checked={filters.folded}
          onChange={(event) => change({ folded: event.currentTarget.checked })} /> Fold sweeps</label>
      </div>
      <Statuses filters={filters} counts={counts} />
      <Chosen filters={filters} />
    </div>
  );
}

function Search({ filters }: { filters: Filters }) {
  const [text, setText] = useState(filters.q);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(filters.q), [filters.q]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (value: string) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ q: value }), PAUSE_MS);
  };
  return (
    <input id="jobs-search" class="search" type="search" aria-label="Search names, apps, labels and ids" placeholder="Name, app, label or id  ( / )"
      value={text} onInput={(event) => typed(event.currentTarget.value)} />
  );
}

function LabelField({ filters, seen }: { filters: Filters; seen: readonly JobLine[] }) {
  const add = (input: HTMLInputElement) => {
    const label = input.value.trim();
    if (!label.includes(":") || label.includes(",")) return;
    input.value = "";
    if (!filters.labels.includes(label)) change({ labels: [...filters.labels, label] }, false);
  };
  const labels = useMemo(() => labelsOf(seen), [Math.min(seen.length, LOOKED_AT)]);
  return (
    <>
      <input class="label-field" list="jobs-labels" aria-label="Only jobs with this label, as key:value" placeholder="label, key:value"
        onKeyDown={(event) => event.key === "Enter" && add(event.currentTarget)} onChange={(event) => add(event.currentTarget)} />
      <datalist id="jobs-labels">{labels.map((label) => <option key={label} value={label} />)}</datalist>
    </>
  );
}

/** The labels of what is read, at most fifty. */
function labelsOf(seen: readonly JobLine[]): string[] {
  const found = new Set<string>();
  for (const job of seen.slice(0, LOOKED_AT)) for (const [name, value] of Object.entries(job.labels)) found.add(`${name}:${value}`);
  return [...found].sort().slice(0, 50);
}

function Statuses({ filters, counts }: { filters: Filters; counts: Counts }) {
  const all = Object.values(counts).reduce<number>((sum, one) => sum + (one ?? 0), 0);
  const toggle = (status: string) => {
    const without = filters.status.filter((one) => one !== status);
    change({ status: without.length < filters.status.length ? without : [...filters.status, status] }, false);
  };
  return (
    <div class="statuses" role="group" aria-label="Only jobs that are">
      <button type="button" aria-pressed={filters.status.length === 0} onClick={() => change({ status: [] }, false)}>all <b>{count(all)}</b></button>
      {STATUSES.map((status) => (
        <button key={status} type="button" class={KINDS[status]} aria-pressed={filters.status.includes(status)} onClick={() => toggle(status)}>
          {status} <b>{count(counts[status] ?? 0)}</b>
        </button>
      ))}
    </div>
  );
}

/** What narrows the jobs and has no field of its own. */
function Chosen({ filters }: { filters: Filters }) {
  const others = ([["app", "app_id"], ["sweep", "sweep_id"], ["key", "key_id"]] as const).filter(([, name]) => filters[name]);
  if (!others.length && !filters.labels.length) return null;
  return (
    <div class="chosen">
      {filters.labels.map((label) => (
        <Chip key={label} text={label} onRemove={() => change({ labels: filters.labels.filter((one) => one !== label) }, false)} />
      ))}
      {others.map(([what, name]) => <Chip key={name} text={`${what} ${filters[name]}`} onRemove={() => change({ [name]: null }, false)} />)}
    </div>
  );
}

function Chip({ text, onRemove }: { text: string; onRemove: () => void }) {
  return <button type="button" class="chip" aria-label={`No longer only ${text}`} onClick={onRemove}><span class="cut">{text}</span> ✕</button>;
}

export function change(changes: Partial<Filters>, replace = true): void {
  setQuery(inAddress(changes), { replace });
}
