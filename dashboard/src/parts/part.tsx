/** A part of a page that reads something of its own: while it loads, when that fails, and what it says then. */

import type { ComponentChildren } from "preact";

import { Failure } from "./failure";
import { Loading } from "./loading";
import type { Reading } from "./reading";

interface PartProps<T> {
  title: string;
  reading: Reading<T>;
  children: (value: T) => ComponentChildren;
}

/** What was read last stays while a later reading fails; that it is old is said. */
export function Part<T>({ title, reading, children }: PartProps<T>) {
  const { value, error, again } = reading;
  return (
    <section aria-label={title}>
      <h2>{title}</h2>
      {value === null && (error ? <Failure error={error} again={again} /> : <Loading what="Reading" />)}
      {value !== null && error && <p class="wait" role="status">Not up to date: {error.message}</p>}
      {value !== null && children(value)}
    </section>
  );
}
