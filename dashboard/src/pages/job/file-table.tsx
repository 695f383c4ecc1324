import type { FileLink } from "../../api/jobs";
import { bytes } from "../../format";
import { Command } from "../../parts/command";
import { quoted } from "./changes";
import { safeLink } from "./links";

interface Props {
  files: readonly FileLink[];
  command: (path: string) => string; // that fetches one of them
  onLook?: (file: FileLink) => void;
  looked?: string | null;
}

const MOST = 1_000;

/** Files with their size and the way to get them. A file in pieces has no link: the command joins and checks it. */
export function FileTable({ files, command, onLook, looked }: Props) {
  return (
    <table class="files">
      <thead><tr><th>Path</th><th class="number">Size</th><th>Get it</th></tr></thead>
      <tbody>
        {files.slice(0, MOST).map((file) => (
          <tr key={file.path} class={looked === file.path ? "chosen-row" : ""}>
            <td class="path">{onLook ? <button type="button" class="link" onClick={() => onLook(file)}>{file.path}</button> : file.path}</td>
            <td class="number">{bytes(file.size_bytes)}</td>
            <td><Get file={file} command={command(quoted(file.path))} /></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Get({ file, command }: { file: FileLink; command: string }) {
  const url = safeLink(file.url);
  if (!url) return <Command text={command} />;
  return <a href={url} download={file.path.split("/").at(-1)} rel="noopener noreferrer nofollow" target="_blank">Download</a>;
}
