// Go's standard library: prints each line of a stream as a server-sent event, until it is cut.
// Argument: the URL.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	request, err := http.NewRequest("GET", os.Args[1], nil)
	if err != nil {
		panic(err)
	}
	request.Header.Set("Accept", "application/x-ndjson")
	answer, err := http.DefaultClient.Do(request)
	if err != nil || answer.StatusCode != http.StatusOK {
		panic(fmt.Sprint(answer, err))
	}
	lines := bufio.NewReader(answer.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var event struct{ Type, Position string }
		if err := json.Unmarshal(line, &event); err != nil {
			panic(err)
		}
		name := strings.ToLower(event.Type)
		fmt.Printf("id: %s\nevent: %s\ndata: %s\n", event.Position, name, line)
	}
}
