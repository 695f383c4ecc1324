/** A list of any length of which only what one sees is drawn. What one looks at stays where it is while rows come or go. */

import type { ComponentChildren, HTMLAttributes, RefObject } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { anchorAt, rangeOf, topOf, topToShow, type Anchor, type Range } from "./virtual-range";
import "./virtual-rows.css";

const NEAR_END = 20; // rows before the end, at which more is asked for

export interface VirtualRowsProps<T> {
  items: readonly T[];
  keyOf: (item: T, index: number) => string;
  /** Draws one row. It has to be `rowHeight` pixels high. */
  row: (item: T, index: number) => ComponentChildren;
  rowHeight: number;
  head?: ComponentChildren; // stays at the top
  tail?: ComponentChildren; // after the last row
  follow?: boolean; // stay at the end as rows come
  onScrolled?: (state: { top: number; atEnd: boolean }) => void;
  onNearEnd?: () => void;
  show?: string | null; // the key of a row that has to be seen, e.g. since it was selected by key
  startAt?: number; // scrolled so far at first
  class?: string;
  box?: HTMLAttributes<HTMLDivElement>; // further attributes of the scrolling box: its role, label, keys
}

export function VirtualRows<T>(props: VirtualRowsProps<T>) {
  const { items, rowHeight } = props;
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  const { range, look, anchor } = useRange(box, latest);
  useKept(box, latest, anchor, look);
  useShown(box, props);
  const end = Math.min(range.end, items.length);
  return (
    <div {...props.box} ref={box} class={`virtual ${props.class ?? ""}`} onScroll={look}>
      {props.head && <div class="virtual-head">{props.head}</div>}
      <div class="virtual-body" role="presentation" style={{ height: `${items.length * rowHeight}px` }}>
        <div class="virtual-window" role="presentation" style={{ transform: `translateY(${range.first * rowHeight}px)` }}>
          {items.slice(range.first, end).map((item, at) => props.row(item, range.first + at))}
        </div>
      </div>
      {props.tail}
    </div>
  );
}

type Box = RefObject<HTMLDivElement | null>;

/** What is drawn, by where the box is scrolled to; and what one looks at there. */
function useRange<T>(box: Box, latest: { current: VirtualRowsProps<T> }) {
  const anchor = useRef<Anchor | null>(null);
  const [range, setRange] = useState<Range>({ first: 0, end: 0 });
  const look = useCallback(() => {
    const at = box.current;
    if (!at) return;
    const now = latest.current;
    anchor.current = anchorAt(at.scrollTop, now.rowHeight, (index) => keyAt(now, index));
    const found = rangeOf(at.scrollTop, at.clientHeight, now.rowHeight, now.items.length);
    setRange((before) => (before.first === found.first && before.end === found.end ? before : found));
    now.onScrolled?.({ top: at.scrollTop, atEnd: at.scrollHeight - at.scrollTop - at.clientHeight < now.rowHeight });
    if (found.end >= now.items.length - NEAR_END) now.onNearEnd?.();
  }, []);
  return { range, look, anchor };
}

/** Keeps one's place as rows come and go, or the end of what grows, also when the box changes its size. */
function useKept<T>(box: Box, latest: { current: VirtualRowsProps<T> }, anchor: { current: Anchor | null }, look: () => void): void {
  const { items, rowHeight, follow } = latest.current;
  useLayoutEffect(() => {
    const at = box.current!;
    at.scrollTop = latest.current.startAt ?? 0;
    const sizes = new ResizeObserver(() => {
      if (latest.current.follow) at.scrollTop = at.scrollHeight;
      look();
    });
    sizes.observe(at);
    return () => sizes.disconnect();
  }, []);
  useLayoutEffect(() => {
    const at = box.current!;
    if (follow) at.scrollTop = at.scrollHeight;
    else if (anchor.current) {
      const top = topOf(anchor.current, rowHeight, items.length, (index) => keyAt(latest.current, index));
      if (top !== null && Math.abs(top - at.scrollTop) >= 1) at.scrollTop = top;
    }
    look();
  }, [items, rowHeight, follow]);
}

/** Brings a row into sight when another one has to be seen. */
function useShown<T>(box: Box, { items, keyOf, rowHeight, show }: VirtualRowsProps<T>): void {
  useEffect(() => {
    if (!show || !box.current) return;
    const index = items.findIndex((item, at) => keyOf(item, at) === show);
    const covered = box.current.querySelector<HTMLElement>(".virtual-head")?.offsetHeight ?? 0;
    const top = index < 0 ? null : topToShow(index, box.current.scrollTop, box.current.clientHeight - covered, rowHeight);
    if (top !== null) box.current.scrollTop = top;
  }, [show]);
}

function keyAt<T>(props: VirtualRowsProps<T>, index: number): string | undefined {
  const item = props.items[index];
  return item === undefined ? undefined : props.keyOf(item, index);
}
