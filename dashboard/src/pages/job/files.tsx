import { all, get } from "../../api/client";
import { isOver, type FileLink, type Job, type Preview } from "../../api/jobs";
import { bytes, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Failure } from "../../parts/failure";
import { Loading } from "../../parts/loading";
import { useReading } from "../../parts/reading";
import { route, setQuery } from "../../route";
import type { TabProps } from ".";
import { FileTable } from "./file-table";
import { safeLink } from "./links";

const ANEW_MS = 20_000;

/** What it left: results of its runs, to look into and to get. */
export function Files({ job }: TabProps) {
  const path = `v1/jobs/${encodeURIComponent(job.id)}/artifacts`;
  const { value, error, again } = useReading(`files ${job.id}`, (signal) => all<FileLink>(path, { query: { limit: 1000 }, signal }), isOver(job) ? 0 : ANEW_MS);
  if (!value) return error ? <Failure error={error} again={again} /> : <Loading what="Reading the files" />;
  if (!value.length) return <NoFiles job={job} />;
  const looked = value.find((file) => file.path === route.value.query.get("file"));
  const total = value.reduce((sum, file) => sum + file.size_bytes, 0);
  return (
    <div class="files-tab">
      <p class="between"><span class="faint">{plural(value.length, "file")}, {bytes(total)}{!isOver(job) && ", so far"}</span><Command text={`allpass download ${job.id}`} /></p>
      <NotKept job={job} />
      <div class="columns">
        <div class="scroll" tabIndex={0} role="group" aria-label="Files"><FileTable files={value} looked={looked?.path} onLook={(file) => setQuery({ file: file.path })} command={(file) => `allpass download ${job.id} --only ${file}`} /></div>
        {looked ? <Look key={looked.path} job={job} file={looked} /> : <p class="faint">Choose a file to look into it.</p>}
      </div>
    </div>
  );
}

function NotKept({ job: { results } }: { job: Job }) {
  if (!results?.left_files) return null;
  return (
    <p class="wait">
      {plural(results.left_files, "file")} of {bytes(results.left_bytes)} that its newest run wrote are not kept: name them
      with <code>--keep PATH</code>.
    </p>
  );
}

function Look({ job, file }: { job: Job; file: FileLink }) {
  const path = `v1/jobs/${encodeURIComponent(job.id)}/artifacts/preview`;
  const { value, error, again } = useReading(`${path} ${file.path}`, (signal) => get<Preview>(path, { query: { path: file.path }, signal }));
  return (
    <section class="look" aria-label={`Preview of ${file.path}`}>
      <h2 class="path">{file.path}</h2>
      {value ? <Content preview={value} file={file} /> : error ? <Failure error={error} again={again} /> : <Loading what="Reading the file" />}
    </section>
  );
}

function Content({ preview, file }: { preview: Preview; file: FileLink }) {
  const url = safeLink(file.url);
  if (preview.text !== null) {
    return (
      <>
        <pre tabIndex={0}>{preview.text}</pre>
        {preview.truncated && <p class="faint">The beginning of {bytes(preview.size_bytes)}.</p>}
      </>
    );
  }
  if (preview.kind === "image" && url) {
    return <p>An image of {bytes(preview.size_bytes)}: <a href={url} target="_blank" rel="noopener noreferrer nofollow">open it</a></p>;
  }
  return <p class="faint">{bytes(preview.size_bytes)} that are no text.</p>;
}

function NoFiles({ job }: { job: Job }) {
  return (
    <Empty title={isOver(job) ? "It left no files." : "No files yet"}>
      <p>What a script writes below <code>ALLPASS_OUTPUT_DIR</code> is kept, and what is new in its working folder when a run ends.</p>
    </Empty>
  );
}
