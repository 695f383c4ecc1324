import { useState } from "preact/hooks";

import { Empty } from "../../parts/empty";
import type { TabProps } from ".";
import { flat, parameterPairs, type Pair } from "./flat";

/** What the script was given, and what the service was told about the job. */
export function Parameters({ job }: TabProps) {
  const [json, setJson] = useState(false);
  const parameters = parameterPairs(job.parameters);
  return (
    <div class="parameters">
      <label class="check"><input type="checkbox" checked={json} onChange={(event) => setJson(event.currentTarget.checked)} /> As JSON</label>
      {json ? (
        <pre tabIndex={0}>{JSON.stringify({ parameters: job.parameters, template: job.template }, null, 2)}</pre>
      ) : (
        <div class="columns">
          <section aria-labelledby="parameters"><h2 id="parameters">Parameters</h2>{parameters.length ? <Pairs pairs={parameters} /> : <Empty title="It has none." />}</section>
          <section aria-labelledby="template"><h2 id="template">Template</h2><Pairs pairs={flat(job.template)} /></section>
        </div>
      )}
    </div>
  );
}

function Pairs({ pairs }: { pairs: readonly Pair[] }) {
  return (
    <table class="pairs">
      <tbody>{pairs.map(({ name, value }, at) => <tr key={at}><th scope="row">{name}</th><td class="mono">{value}</td></tr>)}</tbody>
    </table>
  );
}
