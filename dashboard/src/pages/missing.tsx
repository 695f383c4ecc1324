import { Empty } from "../parts/empty";
import { href, route } from "../route";

export function Missing() {
  return (
    <Empty title={`There is no page “${route.value.name}”.`}>
      <p><a href={href("jobs")}>Go to the jobs</a></p>
    </Empty>
  );
}
