package node

import (
	"encoding/json"
	"strings"
	"testing"
)

// With two replicas of both models, the second request of a conversation finds
// its prefix at the replica that had the first one.
func TestSecondRequestFindsItsPrefix(t *testing.T) {
	r := start(t, func(c *Config) {
		c.PageSize = 16
		for i := range c.Models {
			c.Models[i].Replicas = 2
		}
	})
	cached := func(question string) int {
		body, err := json.Marshal(map[string]any{
			"model": "tiny", "max_tokens": 24, "temperature": 0, "messages": []map[string]string{{"role": "user", "content": question}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal([]byte(r.raw(t, "/v1/chat/completions", string(body))), &got); err != nil {
			t.Fatal(err)
		}
		return got.Usage.Details.Cached
	}
	for _, digit := range []string{"1", "2", "3", "4", "5", "6"} {
		question := strings.Repeat(digit+" + ", 40) + "1?"
		cached(question)
		for range 2 {
			if n := cached(question); n < 32 {
				t.Errorf("%.6s…: %d tokens from the cache", question, n)
			}
		}
	}
}
