"""Chat with TokenRouter by the official OpenAI client, and see who wrote what.

    trctl serve &
    pip install -r examples/requirements.txt
    python examples/openai_client.py

TRCTL_URL is the server's address (default http://127.0.0.1:8000).
"""

import os
import sys

from openai import NotFoundError, OpenAI

URL = os.environ.get("TRCTL_URL", "http://127.0.0.1:8000").rstrip("/")
QUESTION = "What is 48 + 72 * 29?"
ANSWER = "The answer is 2136"


def main() -> None:
    client = OpenAI(base_url=URL + "/v1", api_key="not-needed", max_retries=0)

    served = [model.id for model in client.models.list()]
    print("served:", ", ".join(served))
    name = os.environ.get("TRCTL_MODEL", served[0])

    # A stream has one chunk for each token; "trctl" in it names the model that wrote the token.
    request = dict(model=name, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=600)
    text, routing, finish, last = "", None, None, None
    for chunk in client.chat.completions.create(stream=True, **request):
        extra = chunk.model_extra.get("trctl", {})
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            text += piece
            finish = choice.finish_reason or finish
            if piece and extra.get("model") != last:
                last = extra.get("model")
                print(f"\n[{last}] ", end="")
            print(piece, end="", flush=True)
        if "provenance" in extra:
            routing = extra
    print("\n")

    # The whole answer at once is the same text.
    whole = client.chat.completions.create(**request)
    assert whole.choices[0].message.content == text, "stream and whole answer differ"
    assert finish == "stop", finish
    assert ANSWER in text, text

    # Who wrote it, run-length encoded, and the share of the large model.
    print("policy", routing["policy"], "- tokens", routing["tokens"], "- large share", routing["large_share"])
    assert sum(n for _, n in routing["provenance"]) == sum(routing["tokens"].values()) == whole.usage.completion_tokens
    if len(routing["models"]) > 1:
        assert all(routing["tokens"].values()), "one of the models wrote nothing"

    # Errors are the client's own types.
    try:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    except NotFoundError as error:
        assert error.code == "model_not_found", error.code
    else:
        sys.exit("an unknown model was accepted")
    print("ok")


if __name__ == "__main__":
    main()
