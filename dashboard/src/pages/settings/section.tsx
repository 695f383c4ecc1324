import type { ComponentChildren } from "preact";

import { all } from "../../api/client";
import { may } from "../../api/session";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading, type Reading } from "../../parts/reading";
import type { Key } from "./shapes";

const PAGE = 500;

/** All of a list, up to two thousand. */
export function useList<T>(path: string, everyMs = 0): Reading<T[]> {
  return useReading(path, (signal) => all<T>(path, { query: { limit: PAGE }, signal }), everyMs);
}

/** The keys, where one may see them; else none. */
export function useKeys(): readonly Key[] {
  const allowed = may("admin");
  return useReading(`keys ${allowed}`, (signal) => (allowed ? all<Key>("v1/keys", { query: { limit: PAGE }, signal }) : Promise.resolve([]))).value ?? [];
}

/** The names of keys, where one may see them; else their ids. */
export function useKeyNames(): (id: string) => string {
  const keys = useKeys();
  return (id) => keys.find((one) => one.id === id)?.name ?? id;
}

interface SectionProps {
  title: string;
  what: ComponentChildren; // what it is for, in a sentence
  command: string;
  action?: ComponentChildren; // the button that adds one
  children: ComponentChildren;
}

export function Section({ title, what, command, action, children }: SectionProps) {
  return (
    <section class="settings-section" aria-label={title}>
      <div class="section-title">
        <h2>{title}</h2>
        <div class="section-acts"><Command text={command} />{action}</div>
      </div>
      <p class="faint section-what">{what}</p>
      {children}
    </section>
  );
}

/** Of one thing that is read: its three states before it is there, and a word when it is out of date. */
export function Read<T>({ from, what, children }: { from: Reading<T>; what: string; children: (value: T) => ComponentChildren }) {
  const { value, error, again } = from;
  if (value === null) return <div class="settings-wait">{error ? <Failure error={error} again={again} /> : <Loading what={what} />}</div>;
  return (
    <>
      {error && <p class="bad" role="status">Not up to date: {error.message}</p>}
      {children(value)}
    </>
  );
}

/** In place of what the key may not see. */
export function NotAllowed({ scope, what }: { scope: string; what: string }) {
  return (
    <Empty title={`${what} needs a key with scope ${scope}.`}>
      <p>Sign in with such a key, or ask whoever runs this service for one.</p>
    </Empty>
  );
}
