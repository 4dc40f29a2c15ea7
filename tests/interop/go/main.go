// Command interop drives Apache's rocketmq-client-go against a cluster: interop NAME_SERVERS CASE TOPIC. It prints
// what it saw as one line "RESULT ..." and leaves with 0, or says why not and leaves with 1.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	messages = 40
	patience = 60 * time.Second
)

var nameServers primitive.NamesrvAddr

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "interop NAME_SERVERS CASE TOPIC")
		os.Exit(2)
	}
	rlog.SetLogLevel(envOr("INTEROP_GO_LOG", "error"))
	nameServers = strings.Split(os.Args[1], ";")
	cases := map[string]func(topic string) (string, error){
		"restart": restart, "request": request, "transaction": transaction}
	run, known := cases[os.Args[2]]
	if !known {
		fmt.Fprintln(os.Stderr, "there is no case", os.Args[2])
		os.Exit(2)
	}
	result, err := run(os.Args[3])
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
	fmt.Println("RESULT", result)
}

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// bodies collects what a listener was given.
type bodies struct {
	mutex sync.Mutex
	seen  map[string]int
}

func (b *bodies) add(body []byte) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.seen[string(body)]++
}

func (b *bodies) count() (different, all int) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, times := range b.seen {
		all += times
	}
	return len(b.seen), all
}

func until(deadline time.Duration, done func() bool) bool {
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}

func startProducer(group, instance string) (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(
		producer.WithGroupName(group), producer.WithInstanceName(instance),
		producer.WithNsResolver(primitive.NewPassthroughResolver(nameServers)), producer.WithRetry(2))
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func startConsumer(group, instance, topic string, on listener) (rocketmq.PushConsumer, error) {
	made, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(group), consumer.WithInstance(instance),
		consumer.WithNsResolver(primitive.NewPassthroughResolver(nameServers)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		return nil, err
	}
	if err = made.Subscribe(topic, consumer.MessageSelector{}, on); err != nil {
		return nil, err
	}
	return made, made.Start()
}

// restart consumes all messages, shuts the consumer down and starts another one: how many came again?
func restart(topic string) (string, error) {
	sender, err := startProducer(topic+"_senders", "sender")
	if err != nil {
		return "", err
	}
	for number := 0; number < messages; number++ {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("message %d", number)))
		if _, err = sender.SendSync(context.Background(), message); err != nil {
			return "", err
		}
	}
	group := topic + "_readers"
	first, err := consume(group, "first", topic, func(seen *bodies) bool {
		different, _ := seen.count()
		return different == messages
	})
	if err != nil {
		return "", err
	}
	if different, _ := first.count(); different != messages {
		return "", fmt.Errorf("the first consumer got %d of %d messages", different, messages)
	}
	// The second one knows that it is at the end when it has got what was sent after the first one ended.
	last := primitive.NewMessage(topic, []byte("last"))
	if _, err = sender.SendSync(context.Background(), last); err != nil {
		return "", err
	}
	second, err := consume(group, "second", topic, func(seen *bodies) bool {
		seen.mutex.Lock()
		defer seen.mutex.Unlock()
		return seen.seen["last"] > 0
	})
	if err != nil {
		return "", err
	}
	if second.seen["last"] == 0 {
		return "", fmt.Errorf("the second consumer did not get the last message")
	}
	_, all := second.count()
	return fmt.Sprintf("again=%d", all-second.seen["last"]), sender.Shutdown()
}

// consume starts a consumer, waits until it has seen enough, gives its offsets time to be noted, and shuts it down.
func consume(group, instance, topic string, enough func(*bodies) bool) (*bodies, error) {
	seen := &bodies{seen: map[string]int{}}
	reader, err := startConsumer(group, instance, topic,
		func(_ context.Context, arrived ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range arrived {
				seen.add(message.Body)
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return nil, err
	}
	until(patience, func() bool { return enough(seen) })
	time.Sleep(time.Second)
	return seen, reader.Shutdown()
}

// request asks by Request(); a consumer of this client answers.
func request(topic string) (string, error) {
	answerer, err := startProducer(topic+"_answerers", "answerer")
	if err != nil {
		return "", err
	}
	asker, err := startProducer(topic+"_askers", "asker")
	if err != nil {
		return "", err
	}
	failed := make(chan error, 100)
	reader, err := startConsumer(topic+"_readers", "reader", topic,
		func(_ context.Context, arrived ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range arrived {
				reply, err := consumer.CreateReplyMessage(message, nil)
				if err == nil {
					reply.Body = append([]byte("answer to "), message.Body...)
					_, err = answerer.SendSync(context.Background(), reply)
				}
				if err != nil {
					failed <- err
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return "", err
	}
	defer reader.Shutdown()
	reply, err := asker.Request(context.Background(), 30*time.Second, primitive.NewMessage(topic, []byte("question")))
	select {
	case why := <-failed:
		return "", fmt.Errorf("the answerer failed: %w (Request: %v)", why, err)
	default:
	}
	if err != nil {
		return "", err
	}
	return "reply=" + string(reply.Body), nil
}

// decisions is a transaction listener: of three transactions it commits one, rolls one back and leaves one open. Of the
// open ones it commits every second when the broker asks.
type decisions struct {
	mutex sync.Mutex
	asked map[string]bool
}

func number(body []byte) int {
	var found int
	fmt.Sscanf(string(body), "transaction %d", &found)
	return found
}

func (d *decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return []primitive.LocalTransactionState{primitive.CommitMessageState, primitive.RollbackMessageState,
		primitive.UnknowState}[number(message.Body)%3]
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.asked[string(message.Body)] = true
	if number(message.Body)%2 == 0 {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// transaction sends transactions with all outcomes and consumes what was committed.
func transaction(topic string) (string, error) {
	outcomes := &decisions{asked: map[string]bool{}}
	sender, err := rocketmq.NewTransactionProducer(outcomes,
		producer.WithGroupName(topic+"_senders"), producer.WithInstanceName("sender"),
		producer.WithNsResolver(primitive.NewPassthroughResolver(nameServers)))
	if err != nil {
		return "", err
	}
	if err = sender.Start(); err != nil {
		return "", err
	}
	defer sender.Shutdown()
	expected, open := map[string]bool{}, 0
	for index := 0; index < messages; index++ {
		body := fmt.Sprintf("transaction %d", index)
		result, err := sender.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body)))
		if err != nil {
			return "", err
		}
		if result.Status != primitive.SendOK {
			return "", fmt.Errorf("%s was sent with status %d", body, result.Status)
		}
		if index%3 == 0 || index%3 == 2 && index%2 == 0 {
			expected[body] = true
		}
		if index%3 == 2 {
			open++
		}
	}
	if !until(patience, func() bool {
		outcomes.mutex.Lock()
		defer outcomes.mutex.Unlock()
		return len(outcomes.asked) == open
	}) {
		return "", fmt.Errorf("the broker asked for %d of %d open transactions", len(outcomes.asked), open)
	}
	seen, err := consume(topic+"_readers", "reader", topic, func(seen *bodies) bool {
		different, _ := seen.count()
		return different >= len(expected)
	})
	if err != nil {
		return "", err
	}
	for body := range seen.seen {
		if !expected[body] {
			return "", fmt.Errorf("%s is visible, and was rolled back", body)
		}
	}
	different, all := seen.count()
	return fmt.Sprintf("visible=%d of %d, deliveries=%d", different, len(expected), all), nil
}
