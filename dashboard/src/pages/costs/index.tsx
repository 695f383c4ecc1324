/** What was spent on what, against which budgets, and what the month comes to. */

import { useMemo } from "preact/hooks";

import { all, get } from "../../api/client";
import type { Budget, Usage } from "../../api/costs";
import { money } from "../../format";
import { Chart } from "../../parts/chart";
import { Command } from "../../parts/command";
import { FiguresRow } from "../../parts/figures-row";
import { Part } from "../../parts/part";
import { useReading } from "../../parts/reading";
import { Budgets } from "./budgets";
import { daysOf, forecast, monthOf } from "./groups";
import { Spent } from "./spent";

const ANEW_MS = 15_000;

export function Costs() {
  const month = useMemo(() => monthOf(new Date()), []);
  const from = month.begin.toISOString();
  const days = useReading(`days ${from}`, (signal) => get<Usage>("v1/usage", { signal, query: { group_by: "day", from } }), ANEW_MS);
  const budgets = useReading("budgets", (signal) => all<Budget>("v1/budgets", { signal }), ANEW_MS);
  return (
    <div class="costs">
      <h1>Costs</h1>
      <Part title="This month" reading={days}>{(usage) => <Month usage={usage} begin={month.begin} end={month.end} />}</Part>
      <Spent />
      <Part title="Budgets" reading={budgets}>{(list) => <Budgets budgets={list} />}</Part>
    </div>
  );
}

function Month({ usage, begin, end }: { usage: Usage; begin: Date; end: Date }) {
  const now = new Date();
  const lines = useMemo(() => [{ label: "dollars a day", colour: "--link", points: daysOf(usage.lines, begin, now) }], [usage]);
  const grows = usage.so_far ? " and growing" : "";
  return (
    <>
      <FiguresRow figures={[
        ["so far", money(usage.cost)], ["of it idle", money(usage.idle_cost), usage.idle_cost ? "wait" : undefined],
        ["if the days go on as they did", `about ${money(forecast(usage, begin, now, end))}`],
      ]} />
      <Chart lines={lines} title="Dollars by day of this month, in UTC" what="day" time height={160} format={(value) => money(value * 1e6)} />
      <p class="faint">By day in UTC{grows}. <Command text="allpass cost --by day" /></p>
    </>
  );
}
