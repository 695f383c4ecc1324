/** The shapes of the wire that every page shares: sdk/allpass/wire is their source. Money is integer micro-dollars. */

export interface ErrorDetail {
  code: string;
  message: string;
  param: string | null;
  request_id: string;
  retryable: boolean;
}

export interface Page<T> {
  data: T[];
  next_cursor: string | null;
}

export interface Session {
  project_id: string;
  project_name: string;
  key_id: string;
  key_name: string;
  scopes: string[];
  csrf_token: string;
  expires_at: string;
}
