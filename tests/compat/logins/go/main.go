// The steps of `millstream_harness.logins` by clients in Go. Usage: logins franz-go|kafka-go|sarama STEPS
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	pause = 400 * time.Millisecond
	limit = 40 * time.Second
)

type step struct {
	Name, Action, Bootstrap, Mechanism, CA, User, Password, Token, Certificate, Topic, Group string
	Values                                                                                   []string
}

// client writes the step's values, with a pause after each, and reads the first ones of its topic as a group.
type client interface {
	write(pause time.Duration) error
	read(count int) ([]string, error)
}

func main() {
	made := map[string]func(step) client{
		"franz-go": func(of step) client { return franzGo{of} },
		"kafka-go": func(of step) client { return kafkaGo{of} },
		"sarama":   func(of step) client { return saramaClient{of} },
	}[os.Args[1]]
	text, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	var steps []step
	if err := json.Unmarshal(text, &steps); err != nil {
		panic(err)
	}
	var playing sync.WaitGroup
	for _, each := range steps {
		playing.Add(1)
		go func() {
			defer playing.Done()
			result := "ok"
			if err := play(made(each), each); err != nil {
				result = strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Println("RESULT", each.Name, result)
		}()
	}
	playing.Wait()
}

func play(made client, of step) error {
	switch of.Action {
	case "write":
		return made.write(0)
	case "session":
		return made.write(pause)
	case "read":
		_, err := made.read(1)
		return err
	}
	if err := made.write(0); err != nil {
		return err
	}
	found, err := made.read(len(of.Values))
	if err == nil && !slices.Equal(found, of.Values) {
		err = fmt.Errorf("read %q", found)
	}
	return err
}

func (of step) tls() *tls.Config {
	authority, err := os.ReadFile(of.CA)
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if of.Mechanism == "" {
		own, err := tls.LoadX509KeyPair(of.Certificate, of.Certificate)
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config
}
