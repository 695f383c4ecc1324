import { ApiError } from "../api/client";

/** What went wrong in the service's words, and the way on. */
export function Failure({ error, again }: { error: Error; again?: () => void }) {
  const request = error instanceof ApiError ? error.detail.request_id : "";
  return (
    <div class="failure" role="alert">
      <p>{error.message}</p>
      {request && <p class="faint">Request {request}</p>}
      {again && <button type="button" onClick={again}>Try again</button>}
    </div>
  );
}
