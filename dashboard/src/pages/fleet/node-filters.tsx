import { useEffect, useRef, useState } from "preact/hooks";

import { TIERS } from "../../api/jobs";
import { count } from "../../format";
import { setQuery } from "../../route";
import { SORTS, statesOf, type NodeFilters, type NodeRow } from "./nodes";
import type { Node } from "./shapes";

const PAUSE_MS = 200; // between the last key and the search
const SORT_WORDS = { newest: "newest first", dearest: "dearest first", idle: "most idle first" } as const;

interface Props {
  filters: NodeFilters;
  nodes: readonly Node[] | null; // that are paid for
  ended: number | null;
  providers: readonly NodeRow[]; // to choose providers from
}

export function NodeFilterBar({ filters, nodes, ended, providers }: Props) {
  const names = [...new Set([...providers.map(({ node }) => node.provider), ...(filters.provider ? [filters.provider] : [])])].sort();
  return (
    <div class="filters" role="search" aria-label="Machines">
      <div class="filters-row">
        <SearchField value={filters.q} label="Search machines, GPUs, regions and jobs" placeholder="Machine, GPU, region or job" />
        <Choice name="tier" label="Tier" value={filters.tier} options={TIERS} none="every tier" />
        <Choice name="provider" label="Provider" value={filters.provider} options={names} none="every provider" />
        <Choice name="sort" label="Order" value={filters.sort === "newest" ? null : filters.sort} options={SORTS.slice(1)} none={SORT_WORDS.newest}
          words={(sort) => SORT_WORDS[sort as keyof typeof SORT_WORDS]} />
      </div>
      <div class="statuses" role="group" aria-label="Only machines that are">
        <Chip text="rented" of={nodes?.length ?? null} on={filters.state === null} state={null} />
        <Chip text="ended" of={ended} on={filters.state === "ended"} state="ended" />
        {statesOf(nodes ?? []).map(([state, many]) => <Chip key={state} text={state} of={many} on={filters.state === state} state={state} />)}
      </div>
    </div>
  );
}

function Chip({ text, of, on, state }: { text: string; of: number | null; on: boolean; state: string | null }) {
  return (
    <button type="button" aria-pressed={on} onClick={() => setQuery({ state }, { replace: false })}>
      {text} {of !== null && <b>{count(of)}</b>}
    </button>
  );
}

interface ChoiceProps {
  name: string; // in the address
  label: string;
  value: string | null;
  options: readonly string[];
  none: string;
  words?: (option: string) => string;
}

/** One of some values, or none of them, as the address has it. */
export function Choice({ name, label, value, options, none, words = (option) => option }: ChoiceProps) {
  return (
    <select class="choice" aria-label={label} value={value ?? ""} onChange={(event) => setQuery({ [name]: event.currentTarget.value || null }, { replace: false })}>
      <option value="">{none}</option>
      {options.map((option) => <option key={option} value={option}>{words(option)}</option>)}
    </select>
  );
}

function SearchField({ value, label, placeholder }: { value: string; label: string; placeholder: string }) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (now: string) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: now || null }), PAUSE_MS);
  };
  return <input class="search" type="search" aria-label={label} placeholder={placeholder} value={text} onInput={(event) => typed(event.currentTarget.value)} />;
}
