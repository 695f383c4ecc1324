import { useState } from "preact/hooks";

import { all } from "../../api/client";
import { isOver, type Checkpoint, type FileLink, type Job } from "../../api/jobs";
import { bytes, count, plural } from "../../format";
import { figures } from "../../parts/chart-data";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import type { TabProps } from ".";
import { FileTable } from "./file-table";

const ANEW_MS = 15_000;
const SHOWN = 200;

export function Checkpoints({ job }: TabProps) {
  const path = `v1/jobs/${encodeURIComponent(job.id)}/checkpoints`;
  const { value, error, again } = useReading(`checkpoints ${job.id}`, (signal) => all<Checkpoint>(path, { query: { limit: 1000 }, signal }), isOver(job) ? 0 : ANEW_MS);
  const [open, setOpen] = useState<string | null>(null);
  const [most, setMost] = useState(SHOWN);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the checkpoints" />;
  if (!value.length) return <NoCheckpoints job={job} />;
  const names = [...new Set(value.flatMap((one) => Object.keys(one.metrics)))].slice(0, 4);
  return (
    <div class="checkpoints">
      <p class="faint">{plural(value.length, "checkpoint")}, newest first: the job could go on from each of them, and a new one begin with it.</p>
      <div class="scroll" tabIndex={0} role="group" aria-label="Checkpoints">
        <table>
          <thead><tr><th class="number">Step</th><th>Saved</th><th class="number">Size</th><th class="number">New in the store</th>
            {names.map((name) => <th key={name} class="number">{name}</th>)}<th>Begin a new job with it</th><th>Files</th></tr></thead>
          <tbody>{value.slice(0, most).map((one) => <Row key={one.id} job={job} checkpoint={one} names={names} open={open === one.id} toggle={() => setOpen(open === one.id ? null : one.id)} />)}</tbody>
        </table>
      </div>
      {value.length > most && <p><button type="button" onClick={() => setMost(Infinity)}>Show all {count(value.length)}</button></p>}
    </div>
  );
}

interface RowProps {
  job: Job;
  checkpoint: Checkpoint;
  names: readonly string[];
  open: boolean;
  toggle: () => void;
}

function Row({ job, checkpoint, names, open, toggle }: RowProps) {
  return (
    <>
      <tr>
        <td class="number"><b>{count(checkpoint.step)}</b></td>
        <td><Time at={checkpoint.created_at} /></td>
        <td class="number">{bytes(checkpoint.size_bytes)}</td>
        <td class="number faint more">{checkpoint.stored_bytes === null ? "–" : bytes(checkpoint.stored_bytes)}</td>
        {names.map((name) => <td key={name} class="number more">{figures(checkpoint.metrics[name])}</td>)}
        <td><Command text={`allpass run . --from-checkpoint ${job.id}:${checkpoint.step}`} /></td>
        <td><button type="button" class="small" aria-expanded={open} onClick={toggle}>{open ? "Hide" : "Show"}</button></td>
      </tr>
      {open && <tr><td colSpan={names.length + 6}><CheckpointFiles job={job} checkpoint={checkpoint} /></td></tr>}
    </>
  );
}

function CheckpointFiles({ job, checkpoint }: { job: Job; checkpoint: Checkpoint }) {
  const path = `v1/jobs/${encodeURIComponent(job.id)}/checkpoints/${encodeURIComponent(checkpoint.id)}/files`;
  const { value, error, again } = useReading(path, (signal) => all<FileLink>(path, { query: { limit: 1000 }, signal }));
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading its files" />;
  return <FileTable files={value} command={(file) => `allpass download ${job.id} --checkpoint ${checkpoint.id} --only ${file}`} />;
}

function NoCheckpoints({ job }: { job: Job }) {
  return (
    <Empty title={isOver(job) ? "It left no checkpoint." : "No checkpoint yet"}>
      {job.unsaved && <p class="bad">They are not kept: {job.unsaved}</p>}
      <p>A script that saves in folders of its own says where: <code>allpass run --checkpoints 'out/checkpoint-*'</code>.</p>
    </Empty>
  );
}
