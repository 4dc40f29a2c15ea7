import java.io.OutputStream;
import java.io.PrintStream;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one JUnit 4 class: RunClass NAME. Prints "done METHOD" per method, before it "failed METHOD: WHY" if it failed, and at
 * the end "result run=N failed=N ignored=N"; what the tests print is dropped.
 */
public final class RunClass {
    private static final int LONGEST_REASON = 300;

    private RunClass() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(new PrintStream(OutputStream.nullOutputStream()));
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            @Override
            public void testFinished(Description test) {
                out.println("done " + test.getMethodName());
                out.flush();
            }

            @Override
            public void testFailure(Failure failure) {
                String why = failure.getException().getClass().getSimpleName() + " " + failure.getMessage();
                String line = why.replaceAll("\\s+", " ");
                String name = String.valueOf(failure.getDescription().getMethodName());
                out.println("failed " + name + ": " + line.substring(0, Math.min(LONGEST_REASON, line.length())));
                out.flush();
            }
        });
        Result result = core.run(Class.forName(arguments[0]));
        out.printf("result run=%d failed=%d ignored=%d%n",
            result.getRunCount(), result.getFailureCount(), result.getIgnoreCount());
        out.flush();
        Runtime.getRuntime().halt(result.wasSuccessful() ? 0 : 1);
    }
}
