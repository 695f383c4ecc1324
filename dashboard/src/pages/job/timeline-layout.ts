/** Where everything of a story stands on its axis, in percent of the width. Pure. */

import { TIERS, type TierName } from "../../api/jobs";
import { duration } from "../../format";
import type { Mark, Story, Stretch } from "./story";

export type LaneName = "waiting" | TierName;

export interface Bar {
  stretch: Stretch;
  left: number;
  width: number;
}

export interface Lane {
  name: LaneName;
  bars: Bar[];
}

export interface Point {
  left: number;
  text: string;
}

export interface Layout {
  lanes: Lane[];
  marks: (Mark & { left: number })[];
  ticks: Point[];
  now: number | null; // null: it is over
  finish: Point | null;
  deadline: Point | null;
  beyond: string[]; // what lies right of the axis
}

export interface Ahead {
  over: boolean;
  finish: number | null;
  deadline: number;
}

const LANES: readonly LaneName[] = ["waiting", ...TIERS];
const AHEAD = 0.6; // so much of the time so far is shown of the time to come, at most
const MOST_MARKS = 80; // of a kind: more would be one smear
const TICKS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800].map((s) => s * 1000);

export function layoutOf(story: Story, ahead: Ahead): Layout {
  const end = endOf(story, ahead);
  const span = end - story.from;
  const left = (at: number) => (100 * (at - story.from)) / span;
  const lanes = LANES.map((name) => ({ name, bars: story.stretches.filter((one) => laneOf(one) === name).map((one) => barOf(one, left)) }));
  const point = (at: number | null, text: string) => (at !== null && at >= story.from && at <= end ? { left: left(at), text } : null);
  const finish = ahead.over || (ahead.finish ?? 0) < story.to ? null : point(ahead.finish, "done"); // an old guess says nothing
  const deadline = point(ahead.deadline, "deadline");
  const beyond = [];
  if (!ahead.over && ahead.finish !== null && ahead.finish > end) beyond.push(`done ${duration(ahead.finish - story.to)} from now`);
  if (!deadline && !ahead.over && ahead.deadline > end) beyond.push(`deadline ${duration(ahead.deadline - story.to)} from now`);
  return {
    lanes: lanes.filter((lane) => lane.bars.length),
    marks: thinned(story.marks.map((mark) => ({ ...mark, left: left(mark.at) })).filter((mark) => mark.left >= 0 && mark.left <= 100)),
    ticks: ticksOf(span),
    now: ahead.over ? null : left(story.to),
    finish, deadline, beyond,
  };
}

function endOf({ from, to }: Story, { over, finish, deadline }: Ahead): number {
  if (over) return to;
  const most = to + (to - from) * AHEAD;
  const wanted = [finish, deadline].filter((at): at is number => at !== null && at > to && at <= most);
  return Math.max(to + (to - from) * 0.04, ...wanted.map((at) => at + (at - from) * 0.02));
}

function laneOf({ stay }: Stretch): LaneName {
  return stay ? stay.tier : "waiting";
}

function barOf(stretch: Stretch, left: (at: number) => number): Bar {
  return { stretch, left: left(stretch.from), width: Math.max(0, left(stretch.to) - left(stretch.from)) };
}

/** Of each kind those that do not stand upon each other; faults all the same. */
function thinned(marks: (Mark & { left: number })[]): (Mark & { left: number })[] {
  const last = new Map<string, number>();
  return marks.filter(({ kind, left }) => {
    const before = last.get(kind);
    if (before !== undefined && left - before < 100 / MOST_MARKS) return false;
    last.set(kind, left);
    return true;
  });
}

/** At most seven, at round times since submission. */
export function ticksOf(span: number): Point[] {
  const step = TICKS_MS.find((one) => span / one <= 7) ?? Math.ceil(span / 7 / 604_800_000) * 604_800_000;
  const ticks: Point[] = [];
  for (let at = 0; at < span * 0.97; at += step) ticks.push({ left: (100 * at) / span, text: at === 0 ? "submitted" : `+${duration(at)}` });
  return ticks;
}
