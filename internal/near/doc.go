// Package near finds the word that somebody may have meant, for the hints of error
// texts: names of models, policies, features and keys of files.
package near
