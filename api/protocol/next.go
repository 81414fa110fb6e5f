//go:build nextprotocol

package protocol

// raised is how much newer the versions of this build are than those of the release.
const raised = 1
