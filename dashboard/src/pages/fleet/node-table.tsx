import { VirtualRows } from "../../parts/virtual-rows";
import { setQuery } from "../../route";
import { layout, type Layout } from "../jobs/layout";
import { GroupLine, NodeLine } from "./node-line";
import type { Held, NodeFilters, Row } from "./nodes";

const HEIGHTS: Record<Layout, number> = { wide: 50, middle: 52, cards: 104 };
const COLUMNS: Record<Layout, readonly string[]> = {
  wide: ["State", "Machine", "GPUs", "Busy", "Per hour", "Age", "Cost", "Jobs, or what it says"],
  middle: ["State", "Machine", "Busy", "Per hour", "Age", "Jobs, or what it says"],
  cards: [],
};
const NUMBERS = new Set(["Busy", "Per hour", "Age", "Cost"]);

export function NodeTable({ rows, held, filters }: { rows: readonly Row[]; held: Held; filters: NodeFilters }) {
  const now = layout.value;
  const toggle = (key: string) => {
    const folded = new Set(filters.folded);
    if (!folded.delete(key)) folded.add(key);
    setQuery({ fold: [...folded].join(",") || null });
  };
  return (
    <VirtualRows
      key={[filters.state, filters.sort, filters.tier, filters.provider, filters.q].join("\n")} items={rows} keyOf={(row) => row.key} rowHeight={HEIGHTS[now]} class={`fleet-table ${now}`}
      head={now === "cards" ? undefined : <Head layout={now} />}
      row={(row, index) => (row.kind === "group"
        ? <GroupLine key={row.key} group={row} layout={now} index={index} onToggle={toggle} />
        : <NodeLine key={row.key} row={row} layout={now} index={index} held={held} />)}
      box={{ role: "table", "aria-label": "Machines", "aria-rowcount": rows.length + 1, tabIndex: 0 }}
    />
  );
}

function Head({ layout: now }: { layout: Layout }) {
  return (
    <div class={`node-line head ${now}`} role="row" aria-rowindex={1}>
      {COLUMNS[now].map((name) => <div key={name} role="columnheader" class={NUMBERS.has(name) ? "number" : ""}>{name}</div>)}
    </div>
  );
}
