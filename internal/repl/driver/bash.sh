# Runs cells of code for a stateful context. A request is one line: an end mark, then variables to export
# and code, both in base64. What a cell prints goes to the outputs as it is; the end mark on both outputs,
# with the exit code, ends it. SIGINT interrupts the cell that runs and nothing else.
__pds_cell() { eval "$1"; }
trap 'return 130 2>/dev/null' INT
exec 3<&0 0</dev/null
while IFS=' ' read -r -u 3 __pds_mark __pds_env __pds_code; do
  eval "$(base64 -d <<<"$__pds_env")"
  __pds_cell "$(base64 -d <<<"$__pds_code")"
  __pds_status=$?
  printf '\001%s:%d\002' "$__pds_mark" "$__pds_status"
  printf '\001%s:%d\002' "$__pds_mark" "$__pds_status" >&2
done
