#!/usr/bin/env bash
# Chat with TokenRouter by curl. TRCTL_URL is the server's address.
#
#   trctl serve &
#   examples/curl.sh
set -euo pipefail
url=${TRCTL_URL:-http://127.0.0.1:8000}
model=${TRCTL_MODEL:-tiny}

ask() {
  curl --silent --show-error --no-buffer --max-time 60 "$url/v1/chat/completions" \
    --header 'Content-Type: application/json' \
    --data "{\"model\":\"$model\",\"stream\":$1,\"temperature\":0,\"max_tokens\":600,
             \"messages\":[{\"role\":\"user\",\"content\":\"What is 48 + 72 * 29?\"}]}"
}

echo "# one whole answer"
whole=$(ask false)
echo "$whole"
case $whole in *'The answer is 2136'*) ;; *) echo "curl.sh: wrong answer" >&2; exit 1 ;; esac

echo "# the same as a stream: every event names the model that wrote its token"
stream=$(ask true)
echo "$stream"
case $stream in *'data: [DONE]'*) ;; *) echo "curl.sh: the stream has no end mark" >&2; exit 1 ;; esac
grep --count '"trctl":{"model":' <<<"$stream" | sed 's/^/tokens: /'

status=$(curl --silent --output /dev/null --write-out '%{http_code}' "$url/v1/chat/completions" \
  --header 'Content-Type: application/json' --data '{"model":"no-such-model","messages":[{"role":"user","content":"x"}]}')
[ "$status" = 404 ] || { echo "curl.sh: an unknown model gave $status, not 404" >&2; exit 1; }
echo ok
