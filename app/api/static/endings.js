// How an answer ended that is not simply whole: a mark, its sign and tone, and a sentence that says why.

const ENDINGS = {
  cancelled: ["Stopped", "stop", "plain"],
  refused: ["Declined", "ban", "plain"],
  length: ["Cut short", "alert", "warn", "The answer reached the greatest length that the model may write."],
  content_filter: ["Cut short by the content filter", "alert", "warn", "The model's content filter stopped the answer here."],
  tool_limit: ["Stopped after too many steps", "alert", "warn", "The answer took as many steps as one answer may have."],
  deadline: ["Interrupted: out of time", "clock", "warn", "The time that one answer may take was over."],
  upstream_error: ["Interrupted", "alert", "warn", "The model broke off before its answer was whole. What it had written is kept."],
  shutdown: ["Interrupted: the service was stopped", "alert", "warn", "The service was stopped before the answer was whole."],
  recovered: ["Interrupted by a restart", "alert", "warn", "The service was restarted while this was written. What had been saved is kept."],
};

/** `status` and `reason` as in `completion`, a stored message may have no reason; null for an answer that is whole. */
export function endingOf(status, reason) {
  if (reason === "stop" || (status === "complete" && reason !== "refused")) return null;
  const [words, sign, tone, why = ""] = ENDINGS[reason] ?? ENDINGS[status] ?? ENDINGS.upstream_error;
  return { words, sign, tone, why, name: reason ?? status };
}
