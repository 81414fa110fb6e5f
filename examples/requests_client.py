"""Chat with TokenRouter by plain HTTP: server-sent events read line by line.

    trctl serve &
    pip install -r examples/requirements.txt
    python examples/requests_client.py

TRCTL_URL is the server's address (default http://127.0.0.1:8000).
"""

import json
import os

import requests

URL = os.environ.get("TRCTL_URL", "http://127.0.0.1:8000").rstrip("/")


def chunks(body: dict):
    """Yields the JSON objects of a streamed answer."""
    with requests.post(f"{URL}/v1/chat/completions", json={**body, "stream": True}, stream=True, timeout=60) as response:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        done = False
        for line in response.iter_lines():
            if not line.startswith(b"data: "):
                assert line == b"" or line.startswith(b":"), line
                continue
            if line == b"data: [DONE]":
                done = True
                break
            chunk = json.loads(line.removeprefix(b"data: "))
            assert "error" not in chunk, chunk
            yield chunk
        assert done, "the stream has no end mark"


def main() -> None:
    name = os.environ.get("TRCTL_MODEL") or requests.get(f"{URL}/v1/models", timeout=10).json()["data"][0]["id"]
    question = {"role": "user", "content": "What is 48 + 72 * 29?"}
    body = {"model": name, "messages": [question], "temperature": 0, "max_tokens": 600}

    text, authors, routing = "", [], {}
    for chunk in chunks(body):
        extra = chunk.get("trctl", {})
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            text += piece
            if "model" in extra:
                authors.append((piece, extra["model"]))
        if "provenance" in extra:
            routing = extra

    print(text)
    for piece, model in authors:
        print(f"{model:>8}  {piece!r}")
    print(f"policy {routing['policy']}, large share {routing['large_share']:.1%}")

    assert "The answer is 2136" in text, text
    assert len({model for _, model in authors}) == len(routing["models"]), "one of the models wrote nothing"

    # A bad request is a 400 that names the parameter.
    bad = requests.post(f"{URL}/v1/chat/completions", json={**body, "max_tokens": -1}, timeout=10)
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "max_tokens", bad.text
    print("ok")


if __name__ == "__main__":
    main()
