import { signal, useSignal, type Signal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";

import { VirtualRows } from "../../parts/virtual-rows";
import { go, href } from "../../route";
import { entriesOf, type Entry } from "./folding";
import { COLUMNS, HEIGHTS, layout, type Layout } from "./layout";
import { Line } from "./line";
import { held, more, type JobsState } from "./store";
import { SweepRow } from "./sweep-line";

/** Kept beyond this page, so that coming back from a job finds it chosen, at the same place. */
const selected = signal<string | null>(null);
const open = signal<ReadonlySet<string>>(new Set());
let scrolled = { key: "", top: 0 };
const MOST_WITHOUT_ROWS = 1_000;

const NUMBERS = new Set(["Steps", "Done in", "Deadline", "Spent"]);

export function Table({ state, folded }: { state: JobsState; folded: boolean }) {
  const { rows, cursor, total, key } = state;
  const now = layout.value;
  const entries = useMemo(
    () => entriesOf(rows.list, { folded, open: open.value, complete: cursor === null }),
    [rows, folded, open.value, cursor],
  );
  const shown = useSignal<string | null>(null);
  const act = useActs(shown);
  const readOn = useReadOn(entries.length, rows.list.length);
  return (
    <VirtualRows
      key={key} items={entries} keyOf={idOf} rowHeight={HEIGHTS[now]} show={shown.value} class={`jobs-table ${now}`}
      startAt={scrolled.key === key ? scrolled.top : 0}
      onScrolled={({ top }) => (scrolled = { key, top })}
      onNearEnd={() => readOn && void more()}
      head={now === "cards" ? undefined : <Head layout={now} />}
      tail={<Tail state={state} shown={entries.length} />}
      row={(entry, index) => drawn(entry, index, now, rows.left, act)}
      box={{
        role: "grid", "aria-label": "Jobs", "aria-rowcount": total + 1, tabIndex: 0,
        "aria-activedescendant": selected.value ? `row-${selected.value}` : undefined,
        onKeyDown: (event: KeyboardEvent) => onKey(event, entries, act),
        onPointerEnter: () => (held.value = true), onPointerLeave: () => (held.value = false),
      }}
    />
  );
}

/** Whether scrolling near the end reads the next page: not for ever, where a long sweep that is folded shows nothing new. */
function useReadOn(entries: number, read: number): boolean {
  const grown = useRef({ entries: 0, read: 0 });
  if (entries > grown.current.entries) grown.current = { entries, read };
  return read - grown.current.read < MOST_WITHOUT_ROWS;
}

function useActs(shown: Signal<string | null>): Acts {
  return useMemo(() => ({
    choose: (id) => (selected.value = shown.value = id),
    openJob: (id) => {
      selected.value = id;
      go(href("jobs", id));
    },
    toggle: (id) => {
      selected.value = id;
      open.value = toggled(open.value, id);
    },
  }), []);
}

interface Acts {
  choose: (id: string) => void;
  openJob: (id: string) => void;
  toggle: (id: string) => void;
}

function drawn(entry: Entry, index: number, now: Layout, left: ReadonlyMap<string, number>, { openJob, toggle }: Acts) {
  const chosen = selected.value === entry.id;
  if (entry.kind === "sweep") return <SweepRow key={entry.id} sweep={entry} layout={now} selected={chosen} index={index} onToggle={toggle} />;
  return (
    <Line key={entry.id} job={entry.job} layout={now} inside={entry.inside} selected={chosen} left={left.has(entry.id)} index={index} onOpen={openJob} />
  );
}

function Head({ layout: now }: { layout: Layout }) {
  return (
    <div class={`line head ${now}`} role="row" aria-rowindex={1}>
      {COLUMNS[now].map((name) => <div key={name} role="columnheader" class={NUMBERS.has(name) ? "number" : ""}>{name}</div>)}
    </div>
  );
}

function Tail({ state, shown }: { state: JobsState; shown: number }) {
  const again = (text: string) => <button type="button" class="small" onClick={() => void more(true)}>{text}</button>;
  if (state.error) return <p class="tail bad" role="alert">{state.error.message} {again("Try again")}</p>;
  if (state.cursor !== null) return <p class="tail faint" role="status">{state.busy ? "Reading more …" : again("Read more")}</p>;
  return shown > 20 ? <p class="tail faint">These are all.</p> : null;
}

const STEPS: Record<string, (at: number, last: number) => number> = {
  ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, PageDown: (at) => at + 10, PageUp: (at) => at - 10,
  Home: () => 0, End: (_, last) => last,
};

function onKey(event: KeyboardEvent, entries: readonly Entry[], { choose, openJob, toggle }: Acts): void {
  if (event.ctrlKey || event.metaKey || event.altKey || !entries.length) return;
  const at = entries.findIndex((one) => one.id === selected.value);
  const entry = entries[at];
  const step = STEPS[event.key];
  if (step) choose(entries[at < 0 && event.key !== "End" ? 0 : Math.max(0, Math.min(entries.length - 1, step(at, entries.length - 1)))]!.id);
  else if (event.key === "Enter" && entry) entry.kind === "sweep" ? toggle(entry.id) : openJob(entry.id);
  else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && entry?.kind === "sweep" && entry.open !== (event.key === "ArrowRight")) toggle(entry.id);
  else return;
  event.preventDefault();
}

function toggled(set: ReadonlySet<string>, id: string): ReadonlySet<string> {
  const next = new Set(set);
  if (!next.delete(id)) next.add(id);
  return next;
}

function idOf(entry: Entry): string {
  return entry.id;
}
