package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type saramaClient struct{ step }

// exchange is one login by SCRAM: sarama leaves the mechanism to another library.
type exchange struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (of *exchange) Begin(user, password, authorization string) error {
	client, err := of.hash.NewClient(user, password, authorization)
	if err == nil {
		of.conversation = client.NewConversation()
	}
	return err
}

func (of *exchange) Step(challenge string) (string, error) { return of.conversation.Step(challenge) }
func (of *exchange) Done() bool                            { return of.conversation.Done() }

type token string

func (of token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(of)}, nil
}

func (of saramaClient) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = of.tls()
	config.Net.SASL.Enable = of.Mechanism != ""
	config.Net.SASL.Mechanism = sarama.SASLMechanism(of.Mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = of.User, of.Password
	config.Net.SASL.TokenProvider = token(of.Token)
	hash := map[string]scram.HashGeneratorFcn{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}[of.Mechanism]
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: hash} }
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func (of saramaClient) write(pause time.Duration) error {
	producer, err := sarama.NewSyncProducer([]string{of.Bootstrap}, of.config())
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, value := range of.Values {
		message := &sarama.ProducerMessage{Topic: of.Topic, Value: sarama.StringEncoder(value)}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return nil
}

type handler struct {
	count int
	found []string
	done  func()
}

func (*handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (of *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		of.found = append(of.found, string(message.Value))
		if len(of.found) == of.count {
			of.done()
			return nil
		}
	}
	return nil
}

func (of saramaClient) read(count int) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	group, err := sarama.NewConsumerGroup([]string{of.Bootstrap}, of.Group, of.config())
	if err != nil {
		return nil, err
	}
	defer group.Close()
	reading := &handler{count: count, done: cancel}
	err = group.Consume(ctx, []string{of.Topic}, reading)
	return reading.found, err
}
