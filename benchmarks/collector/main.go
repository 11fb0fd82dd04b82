// How fast does an OpenTelemetry Collector carry rows onward? Called `collector FOLDER FILE BATCH [SENDERS]`.
//
// The rows of FILE, which has a line of JSON each, are made into OTLP logs, BATCH rows a request, and posted to a
// Collector with a queue on the disk, which sends them to a sink that syncs each request to the disk before it
// answers. SENDERS lines feed the Collector, and as many leave it: 1, unless told, keeps the rows in order. The
// clock runs from the first request fed to the last that the sink has answered. Then the rows in the sink's file
// are counted, and printed with the seconds as JSON. All files are under FOLDER, and gone at the end.
//
// The Collector and the sink are processes of their own: this program, called with a role. They end with their
// standard input, and so with whoever started them, however that ends.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
)

const usage = "usage: collector FOLDER FILE BATCH [SENDERS]"

func main() {
	if err := act(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}

func act(words []string) error {
	switch {
	case len(words) == 1 && words[0] == roleCollector:
		return collect()
	case len(words) == 2 && words[0] == roleSink:
		return listen(words[1])
	case len(words) == 3:
		words = append(words, "1")
	case len(words) != 4:
		return fmt.Errorf(usage)
	}
	batch, err := positive(words[2])
	if err != nil {
		return err
	}
	senders, err := positive(words[3])
	if err != nil {
		return err
	}
	found, err := measure(words[0], words[1], batch, senders)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func positive(word string) (int, error) {
	number, err := strconv.Atoi(word)
	if err != nil || number < 1 {
		return 0, fmt.Errorf("%q is not a number from 1 on; %s", word, usage)
	}
	return number, nil
}

// untilStdinEnds returns when who holds the other end lets go of it.
func untilStdinEnds() {
	io.Copy(io.Discard, os.Stdin)
}
