import { get } from "../../api/client";
import type { JobLines } from "../../api/jobs";
import { useReading } from "../../parts/reading";
import { setQuery } from "../../route";

const LOOKED_AT = 200; // jobs whose labels are offered

export function LabelChoice({ value }: { value: string }) {
  const labels = useReading("labels", async (signal) => labelsOf(await get<JobLines>("v1/jobs/table", { query: { limit: LOOKED_AT }, signal })));
  const choose = (label: string) => setQuery({ label: label.trim() || null }, { replace: false });
  return (
    <>
      <input class="label-name" list="cost-labels" aria-label="Name of the label" placeholder="name of a label" value={value} maxLength={200} onChange={(event) => choose(event.currentTarget.value)} />
      <datalist id="cost-labels">{labels.value?.map((label) => <option key={label} value={label} />)}</datalist>
      {!value && labels.value?.slice(0, 6).map((label) => <button key={label} type="button" class="chip" onClick={() => choose(label)}><span class="cut">{label}</span></button>)}
    </>
  );
}

function labelsOf({ data }: JobLines): string[] {
  return [...new Set(data.flatMap((job) => Object.keys(job.labels)))].sort();
}
