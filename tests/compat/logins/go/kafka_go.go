package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"
)

// kafkaGo has no OAUTHBEARER.
type kafkaGo struct{ step }

func (of kafkaGo) mechanism() sasl.Mechanism {
	switch of.Mechanism {
	case "PLAIN":
		return plain.Mechanism{Username: of.User, Password: of.Password}
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
		algorithm := scram.SHA256
		if of.Mechanism == "SCRAM-SHA-512" {
			algorithm = scram.SHA512
		}
		mechanism, err := scram.Mechanism(algorithm, of.User, of.Password)
		if err != nil {
			panic(err)
		}
		return mechanism
	}
	return nil
}

func (of kafkaGo) write(pause time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	writer := &kafka.Writer{
		Addr: kafka.TCP(of.Bootstrap), Topic: of.Topic, BatchSize: 1, RequiredAcks: kafka.RequireAll,
		Transport: &kafka.Transport{TLS: of.tls(), SASL: of.mechanism()},
	}
	defer writer.Close()
	for _, value := range of.Values {
		if err := writer.WriteMessages(ctx, kafka.Message{Value: []byte(value)}); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

func (of kafkaGo) read(count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	failures := make(chan error, 100)
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{of.Bootstrap}, Topic: of.Topic, GroupID: of.Group, StartOffset: kafka.FirstOffset,
		Dialer: &kafka.Dialer{TLS: of.tls(), SASLMechanism: of.mechanism(), Timeout: 10 * time.Second},
		ErrorLogger: kafka.LoggerFunc(func(_ string, arguments ...any) { // it tries again for ever
			for _, argument := range arguments {
				if err, ok := argument.(error); ok {
					select {
					case failures <- err:
						cancel()
					default:
					}
				}
			}
		}),
	})
	defer reader.Close()
	var found []string
	for len(found) < count {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			select {
			case failure := <-failures:
				return found, failure
			default:
				return found, err
			}
		}
		found = append(found, string(message.Value))
	}
	return found, nil
}
