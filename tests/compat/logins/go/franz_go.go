package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type franzGo struct{ step }

// open connects once: a client that only produces tries again for ever, without a word about the reason.
func (of franzGo) open(ctx context.Context, options ...kgo.Opt) (*kgo.Client, error) {
	options = append(options, kgo.SeedBrokers(of.Bootstrap), kgo.DialTLSConfig(of.tls()))
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: of.User, Pass: of.Password}.AsMechanism(),
		"SCRAM-SHA-256": scram.Auth{User: of.User, Pass: of.Password}.AsSha256Mechanism(),
		"SCRAM-SHA-512": scram.Auth{User: of.User, Pass: of.Password}.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: of.Token}.AsMechanism(),
	}
	if mechanism, ok := mechanisms[of.Mechanism]; ok {
		options = append(options, kgo.SASL(mechanism))
	}
	made, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	return made, made.Ping(ctx)
}

func (of franzGo) write(pause time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	producer, err := of.open(ctx)
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, value := range of.Values {
		record := &kgo.Record{Topic: of.Topic, Value: []byte(value)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

func (of franzGo) read(count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	consumer, err := of.open(ctx, kgo.ConsumerGroup(of.Group), kgo.ConsumeTopics(of.Topic))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var found []string
	for len(found) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return found, err
		}
		fetches.EachRecord(func(one *kgo.Record) { found = append(found, string(one.Value)) })
	}
	return found, nil
}
