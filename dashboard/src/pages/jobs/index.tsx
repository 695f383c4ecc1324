import { Empty } from "../../parts/empty";

export function Jobs() {
  return <Empty title="No jobs yet" />;
}
