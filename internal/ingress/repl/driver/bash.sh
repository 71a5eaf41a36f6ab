# Runs cells of code for a stateful context. A request is one line: a mark, then variables to export
# and code, both in base64. What a cell prints goes to the outputs as it is; the mark on both outputs,
# with the exit code, ends it. SIGINT interrupts the cell that runs and nothing else.
__pds_cell() { eval "$1"; }
# display FILE [TYPE] shows a file: a picture, a page, JSON, a table of comma-separated values.
display() {
  local type=${2-}
  if [ ! -r "${1-}" ]; then echo "display: ${1-}: no such file" >&2; return 1; fi
  if [ -z "$type" ]; then
    case ${1,,} in
      *.png) type=image/png ;; *.jpg | *.jpeg) type=image/jpeg ;; *.svg) type=image/svg+xml ;; *.pdf) type=application/pdf ;;
      *.html | *.htm) type=text/html ;; *.md) type=text/markdown ;; *.json) type=application/json ;; *.csv) type=text/csv ;;
      *) type=text/plain ;;
    esac
  fi
  printf '\001%s=%s:%s\002' "$__pds_mark" "$type" "$(base64 <"$1" | tr -d '\n')"
}
trap '' INT # but in a cell: while one is decoded, the signal would end that and so take the cell away
printf '\001\002' # from here on a signal does not end it: the other side waits for something before it sends one
exec 3<&0 0</dev/null
while IFS=' ' read -r -u 3 __pds_mark __pds_env __pds_code; do
  eval "$(base64 -d <<<"$__pds_env")"
  __pds_code=$(base64 -d <<<"$__pds_code")
  trap 'return 130 2>/dev/null' INT
  __pds_cell "$__pds_code"
  __pds_status=$?
  trap '' INT
  printf '\001%s:%d\002' "$__pds_mark" "$__pds_status"
  printf '\001%s:%d\002' "$__pds_mark" "$__pds_status" >&2
done
